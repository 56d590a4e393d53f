// The factory for builds without nvcc.
#include "base/error.hpp"
#include "kernels/backend/cuda_kernels.hpp"

namespace sluice::kernels {

std::string cuda_kernels_missing(int /*major*/, int /*minor*/, int /*driver_version*/) {
  return "built without CUDA, because nvcc was not found when the build was configured";
}

std::string describe_cuda_build() {
  return {};
}

std::unique_ptr<Kernels> make_cuda_kernels(const CudaKernelOptions& /*options*/) {
  throw DeviceError("built without CUDA, because nvcc was not found when the build was configured");
}

}  // namespace sluice::kernels
