// GPUs as the driver lists them, for those who have the driver.
#pragma once

#include "device/cuda/cuda_device.hpp"
#include "device/cuda/cuda_driver.hpp"

namespace sluice::device {

// Throws DeviceError.
CudaDeviceInfo describe_cuda_device(const CudaDriver& driver, int ordinal);
int count_cuda_devices(const CudaDriver& driver);
std::uint64_t free_cuda_bytes(const CudaDriver& driver);  // of the current context

}  // namespace sluice::device
