#include "base/dtype.hpp"

#include "base/error.hpp"

namespace sluice {

std::string_view dtype_name(DType type) {
  switch (type) {
    case DType::kF64:
      return "F64";
    case DType::kF32:
      return "F32";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
    case DType::kI64:
      return "I64";
    case DType::kI32:
      return "I32";
    case DType::kI16:
      return "I16";
    case DType::kU16:
      return "U16";
    case DType::kU8:
      return "U8";
    case DType::kBlock8:
      return "BLOCK8";
  }
  throw InternalError("an element type has a value outside its enumeration");
}

}  // namespace sluice
