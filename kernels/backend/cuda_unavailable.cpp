// The factory for builds without nvcc.
#include "base/error.hpp"
#include "kernels/backend/cuda_kernels.hpp"

namespace sluice::kernels {

std::string cuda_kernels_missing(int /*major*/, int /*minor*/, int /*driver_version*/) {
  return "this build has no kernels for GPUs, because nvcc was not found when it was configured";
}

std::string describe_cuda_build() {
  return {};
}

std::unique_ptr<Kernels> make_cuda_kernels(const CudaKernelOptions& /*options*/) {
  throw DeviceError(
      "this build has no kernels for GPUs, because nvcc was not found when it was configured");
}

}  // namespace sluice::kernels
