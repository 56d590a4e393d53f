// Kernels for a GPU. Each call queues on the stream given by set_stream and returns.
//
// Pointers refer to device memory, or to registered host memory if a function says so. Not
// thread-safe: one thread sets the stream and makes the calls, with the device's context current,
// as inside Stream::launch. Errors: those of kernels/kernels.hpp, and DeviceError if a launch or a
// library fails.
#pragma once

#include <memory>
#include <string>

#include "kernels/kernels.hpp"

namespace sluice::kernels {

// kInstalled: cuBLASLt for products and cuDNN for 16-bit attention if they are installed, otherwise
// our own kernels. kNone: always our own kernels.
enum class CudaLibraries { kInstalled, kNone };
struct CudaKernelOptions {
  int ordinal = 0;  // index of the GPU, as in CudaDeviceOptions
  CudaLibraries libraries = CudaLibraries::kInstalled;
  // Gradients of scores in a slice of cuDNN's backward pass; 0: what training uses. Others serve
  // the bench that compares slices.
  std::uint64_t attention_score_bytes = 0;
};

// Returns the reason why these kernels cannot run on a GPU of that compute capability with that
// driver (values of CudaDeviceInfo), as a sentence without a full stop. Empty if they can.
std::string cuda_kernels_missing(int compute_major, int compute_minor, int driver_version);

// The toolkit and the GPUs that this build has code for: "CUDA 13.0, code for compute capability
// 8.0, 9.0 and 12.0". Empty if the build has no GPU kernels.
std::string describe_cuda_build();

// Throws DeviceError if there is no such GPU or this build has no GPU kernels.
std::unique_ptr<Kernels> make_cuda_kernels(const CudaKernelOptions& options);

}  // namespace sluice::kernels
