// The structs of DLPack 1.x (https://dmlc.github.io/dlpack/latest/c_api.html), as far as dense
// tensors need them. The layout is DLPack's; sluice.h only names the last one.
#pragma once

#include <cstdint>

namespace sluice::capi {

struct DLPackVersion {
  std::uint32_t major, minor;
};
struct DLDevice {
  std::int32_t device_type, device_id;
};
struct DLDataType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null: row-major and dense
  std::uint64_t byte_offset;
};

inline constexpr std::uint8_t kDLInt = 0;
inline constexpr std::uint8_t kDLFloat = 2;
inline constexpr std::uint8_t kDLBfloat = 4;
inline constexpr std::uint32_t kDLMajor = 1;
inline constexpr std::uint32_t kDLMinor = 0;
inline constexpr std::int32_t kDLCudaHost = 3;  // pinned by CUDA

}  // namespace sluice::capi

struct DLManagedTensorVersioned {
  sluice::capi::DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);
  std::uint64_t flags;
  sluice::capi::DLTensor dl_tensor;
};
