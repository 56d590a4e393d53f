// The GPUs that a loaded driver lists.
#pragma once

#include "device/cuda/cuda_device.hpp"
#include "device/cuda/cuda_driver.hpp"

namespace sluice::device {

// Throws DeviceError.
CudaDeviceInfo describe_cuda_device(const CudaDriver& driver, int ordinal);
int count_cuda_devices(const CudaDriver& driver);
std::uint64_t free_cuda_bytes(const CudaDriver& driver);  // on the GPU of the current context

}  // namespace sluice::device
