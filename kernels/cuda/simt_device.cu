// Launches and error reports for nvcc builds; tests replace this file with the emulation's.
#include <string>

#include "base/error.hpp"
#include "kernels/cuda/simt_device.cuh"

namespace sluice::kernels::cuda {
namespace {

// More than 48 KiB of shared memory per block must be requested for each kernel. Memory that a
// kernel declares itself counts too; it is below 16 KiB in all of ours.
constexpr std::size_t kPlainSharedBytes = 32 * 1024;

std::string launch_of(const void* kernel) {
  const char* name = nullptr;
  if (cudaFuncGetName(&name, kernel) != cudaSuccess) name = "a kernel";
  return std::string("launch of ") + name;
}

}  // namespace

void check_status(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // clears the error, so that it is reported once
  throw DeviceError(std::string(call) + ": " + cudaGetErrorString(status) + " (" +
                    cudaGetErrorName(status) + ")");
}

void launch_kernel(cudaStream_t stream, dim3 grid, dim3 block, std::size_t shared_bytes,
                   const void* kernel, void** parameters) {
  if (shared_bytes > kPlainSharedBytes) {
    const cudaError_t status = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (status != cudaSuccess) check_status(status, launch_of(kernel).c_str());
  }
  const cudaError_t status =
      cudaLaunchKernel(kernel, grid, block, parameters, shared_bytes, stream);
  if (status != cudaSuccess) check_status(status, launch_of(kernel).c_str());
}

int multiprocessor_count() {
  int device = 0, count = 0;
  check_status(cudaGetDevice(&device), "cudaGetDevice");
  check_status(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device),
               "cudaDeviceGetAttribute");
  return count;
}

}  // namespace sluice::kernels::cuda
