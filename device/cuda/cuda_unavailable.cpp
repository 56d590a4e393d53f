// Replaces device/cuda if the configuration did not find the CUDA toolkit's headers.
#include "base/error.hpp"
#include "device/cuda/cuda_device.hpp"

namespace sluice::device {
namespace {
constexpr const char* kMissing = "this build has no CUDA backend";
}

CudaSearch find_cuda_devices() {
  return {{}, kMissing};
}

std::uint64_t free_cuda_bytes(int /*ordinal*/) {
  throw DeviceError(kMissing);
}

std::shared_ptr<const CudaContext> hold_cuda_context(int /*ordinal*/) {
  throw DeviceError(kMissing);
}

std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions& /*options*/) {
  throw InputError(std::string("the cuda device is not available: ") + kMissing);
}

}  // namespace sluice::device
