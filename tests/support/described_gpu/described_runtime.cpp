// The questions of cuDNN's frontend to the CUDA runtime: which GPU, and its compute capability. The
// environment variable SLUICE_DESCRIBED_GPU has the latter ("9.0").
#include <cuda_runtime_api.h>

#include <cstdlib>

extern "C" cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

extern "C" cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  const char* const capability = std::getenv("SLUICE_DESCRIBED_GPU");
  if (capability == nullptr) return cudaErrorNoDevice;
  *properties = {};
  char* end = nullptr;
  properties->major = static_cast<int>(std::strtol(capability, &end, 10));
  properties->minor = static_cast<int>(std::strtol(end + 1, nullptr, 10));
  return cudaSuccess;
}
