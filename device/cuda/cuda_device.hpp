// A GPU behind the Device boundary, by the CUDA driver alone, which is looked up when it is asked
// for: a program that holds this code starts, and finds no GPU, on a machine without a driver.
//
// The device's primary context is retained, so that the CUDA runtime, cuBLASLt and NCCL work in the
// same one. Work given to Stream::launch is called at once, on the caller's thread with that
// context current; what it queues on Stream::native() (a CUstream) runs later. Waits poll, and have
// deadlines: nothing here blocks inside the driver for as long as a GPU may hang. One limit of an
// Event that is recorded again while another thread waits for it: that thread waits for the newer
// point.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/device.hpp"

namespace sluice::device {

// A GPU as the driver and sysfs describe it.
struct CudaDeviceInfo {
  int ordinal = 0;
  std::string name;        // "NVIDIA H200"
  std::string pci_bus_id;  // "0000:17:00.0"
  std::uint64_t memory_bytes = 0;
  int compute_major = 0, compute_minor = 0;
  int multiprocessors = 0;
  int driver_version = 0;       // 13000: the newest CUDA that the driver knows
  int numa_node = -1;           // -1: none, or not known
  bool virtual_memory = false;  // maps physical handles into reserved addresses
  std::string link_speed = "";  // of PCI Express, "32.0 GT/s PCIe"; empty: not known
  std::string link_lanes = "";  // "16"; empty: not known
};

struct CudaSearch {
  std::vector<CudaDeviceInfo> devices;
  std::string missing;  // where there are none: why, in one sentence without a full stop
};
// Never throws for want of a driver or a GPU: that is an answer.
CudaSearch find_cuda_devices();

// Bytes of the GPU's memory that nobody uses now. Makes the primary context for as long as it
// looks. Throws DeviceError.
std::uint64_t free_cuda_bytes(int ordinal);

// The GPU's primary context, which lives at least as long as this: for whoever keeps things of
// libraries in it. Throws DeviceError.
class CudaContext;  // device/cuda/cuda_context.hpp
std::shared_ptr<const CudaContext> hold_cuda_context(int ordinal);

struct CudaDeviceOptions {
  int ordinal = 0;
  std::uint64_t capacity_bytes = 0;  // the cap; 0: what is free now
};

// Throws InputError where there is no such GPU, or it has less memory than the cap; DeviceError
// where the driver fails.
std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions& options);

}  // namespace sluice::device
