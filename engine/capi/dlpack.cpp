// Tensors in the form that frameworks exchange.
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "engine/capi/call.hpp"
#include "engine/capi/dlpack_abi.hpp"

namespace sluice::capi {
namespace {

constexpr std::int32_t kMostShape = 8;  // of sluice_from_dlpack's caller
constexpr std::int32_t kMostDimensions = 64;

struct Format {
  std::int32_t dtype;
  std::uint8_t code, bits;
};
constexpr std::array<Format, 4> kFormats{{{SLUICE_DTYPE_F32, kDLFloat, 32},
                                          {SLUICE_DTYPE_BF16, kDLBfloat, 16},
                                          {SLUICE_DTYPE_F16, kDLFloat, 16},
                                          {SLUICE_DTYPE_I16, kDLInt, 16}}};

DLDataType type_of(std::int32_t dtype) {
  for (const Format& format : kFormats) {
    if (format.dtype == dtype) return {format.code, format.bits, 1};
  }
  throw InputError(
      "tensor.dtype is " + std::to_string(dtype) +
      "; use SLUICE_DTYPE_F32, SLUICE_DTYPE_BF16, SLUICE_DTYPE_F16 or SLUICE_DTYPE_I16");
}

std::int32_t number_of(const DLDataType& type) {
  for (const Format& format : kFormats) {
    if (format.code == type.code && format.bits == type.bits && type.lanes == 1) {
      return format.dtype;
    }
  }
  throw CallError(SLUICE_E_UNSUPPORTED, "the DLPack tensor's elements have the type code " +
                                            std::to_string(type.code) + " with " +
                                            std::to_string(type.bits) + " bits and " +
                                            std::to_string(type.lanes) + " lanes");
}

// A description with the memory of its shape and strides, freed as one.
struct Lent {
  DLManagedTensorVersioned managed{};
  std::vector<std::int64_t> shape, strides;
};

std::unique_ptr<Lent> lend(const sluice_tensor& tensor) {
  if (tensor.ndim < 0 || tensor.ndim > kMostDimensions) {
    throw InputError("tensor.ndim is " + std::to_string(tensor.ndim) + "; use 0 to 64");
  }
  if (tensor.ndim > 0) required(tensor.shape, "tensor.shape");
  require_data(tensor.data, "tensor.data");
  auto lent = std::make_unique<Lent>();
  lent->shape.assign(tensor.shape, tensor.shape + tensor.ndim);
  lent->strides.resize(lent->shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = lent->shape.size(); i-- > 0;) {
    lent->strides[i] = stride;
    if (lent->shape[i] < 0) throw InputError("tensor.shape has a negative dimension");
    if (__builtin_mul_overflow(stride, std::max<std::int64_t>(1, lent->shape[i]), &stride)) {
      throw InputError("tensor.shape has more than 2^63 elements");
    }
  }
  DLManagedTensorVersioned& managed = lent->managed;
  managed.version = {kDLMajor, kDLMinor};
  managed.manager_ctx = lent.get();
  managed.deleter = [](DLManagedTensorVersioned* self) {
    delete static_cast<Lent*>(self->manager_ctx);
  };
  managed.dl_tensor = {tensor.data,        {tensor.device_type, tensor.device_id},
                       tensor.ndim,        type_of(tensor.dtype),
                       lent->shape.data(), lent->strides.data(),
                       /*byte_offset=*/0};
  return lent;
}

// A dimension of one element, and a tensor of none, may have any stride.
bool is_dense(const DLTensor& tensor) {
  if (tensor.strides == nullptr) return true;
  std::int64_t stride = 1;
  for (std::int32_t i = tensor.ndim; i-- > 0;) {
    if (tensor.shape[i] == 0) return true;
  }
  for (std::int32_t i = tensor.ndim; i-- > 0;) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != stride) return false;
    if (__builtin_mul_overflow(stride, tensor.shape[i], &stride)) return false;
  }
  return true;
}

sluice_tensor take(const DLManagedTensorVersioned& managed) {
  if (managed.version.major != kDLMajor) {
    throw CallError(SLUICE_E_VERSION, "the tensor is of DLPack " +
                                          std::to_string(managed.version.major) +
                                          ", and this library knows version 1");
  }
  const DLTensor& from = managed.dl_tensor;
  if (from.ndim < 0 || from.ndim > kMostShape) {
    throw InputError("the DLPack tensor has " + std::to_string(from.ndim) +
                     " dimensions; it may have 0 to 8");
  }
  if (from.ndim > 0) required(from.shape, "the DLPack tensor's shape");
  for (std::int32_t i = 0; i < from.ndim; ++i) {
    if (from.shape[i] < 0) throw InputError("the DLPack tensor has a negative dimension");
  }
  if (!is_dense(from)) {
    throw InputError("the DLPack tensor is not row-major and dense; make a contiguous copy");
  }
  sluice_tensor tensor = SLUICE_TENSOR_INIT;
  tensor.dtype = number_of(from.dtype);
  // Memory that CUDA pinned is the host's.
  tensor.device_type =
      from.device.device_type == kDLCudaHost ? SLUICE_DEVICE_CPU : from.device.device_type;
  tensor.device_id = from.device.device_id;
  tensor.ndim = from.ndim;
  tensor.data =
      from.data == nullptr ? nullptr : static_cast<std::byte*>(from.data) + from.byte_offset;
  return tensor;
}

}  // namespace
}  // namespace sluice::capi

using sluice::capi::required;
using sluice::capi::run_call;

sluice_status sluice_to_dlpack(const sluice_tensor* tensor, DLManagedTensorVersioned** out) {
  return run_call("sluice_to_dlpack", [&] {
    required(out, "out");
    *out = &sluice::capi::lend(sluice::capi::read_struct(tensor, "tensor")).release()->managed;
  });
}

sluice_status sluice_from_dlpack(const DLManagedTensorVersioned* managed, sluice_tensor* out,
                                 int64_t shape[8]) {
  return run_call("sluice_from_dlpack", [&] {
    sluice_tensor tensor = sluice::capi::take(required(managed, "managed"));
    required(shape, "shape");
    sluice::capi::check_struct(out, "out");
    std::copy_n(managed->dl_tensor.shape, tensor.ndim, shape);
    tensor.shape = shape;
    sluice::capi::write_struct(out, tensor, "out");
  });
}
