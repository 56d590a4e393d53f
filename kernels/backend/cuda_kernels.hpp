// Kernels for a GPU: each call queues on the stream that set_stream gave, and returns.
//
// Pointers are memory of the device, or registered host memory where a family says so. Not
// thread-safe: the thread that issues work sets the stream and calls, with the device's context
// current, as it is inside Stream::launch. Errors, besides those of kernels/kernels.hpp:
// DeviceError where a launch or a library fails.
#pragma once

#include <memory>
#include <string>

#include "kernels/kernels.hpp"

namespace sluice::kernels {

// kInstalled: products by cuBLASLt and 16-bit attention by cuDNN where they are installed, else by
// kernels of our own; kNone: by those.
enum class CudaLibraries { kInstalled, kNone };
struct CudaKernelOptions {
  int ordinal = 0;  // of the GPU, as in CudaDeviceOptions
  CudaLibraries libraries = CudaLibraries::kInstalled;
};

// Why these kernels cannot run on a GPU of that compute capability under that driver (as
// CudaDeviceInfo has them), in a sentence without a full stop; empty: they can.
std::string cuda_kernels_missing(int compute_major, int compute_minor, int driver_version);

// Throws DeviceError where there is no such GPU, or this build has no kernels for GPUs.
std::unique_ptr<Kernels> make_cuda_kernels(const CudaKernelOptions& options);

}  // namespace sluice::kernels
