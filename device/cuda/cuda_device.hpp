// A GPU behind the Device boundary. It uses the CUDA driver alone and loads it on demand, so a
// program with this code starts on a machine without a driver and finds no GPU there.
//
// The device retains the primary context, so that the CUDA runtime, cuBLASLt and NCCL work in the
// same one. Work given to Stream::launch is called at once on the caller's thread, with that
// context current; the work that it queues on Stream::native() (a CUstream) runs later. Waits
// poll and have deadlines, so a GPU that hangs does not block a thread inside the driver. One
// limit: if an Event is recorded again while another thread waits for it, that thread waits for
// the newer point.
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
  std::string missing;  // the reason if there are none, one sentence without a full stop
};
// Does not throw if there is no driver or no GPU; `missing` then gives the reason.
CudaSearch find_cuda_devices();

// Unused bytes of the GPU's memory now. Retains the primary context during the
// call. Throws DeviceError.
std::uint64_t free_cuda_bytes(int ordinal);

// The GPU's primary context. It lives at least as long as the result, for objects of libraries that
// live in it. Throws DeviceError.
class CudaContext;  // device/cuda/cuda_context.hpp
std::shared_ptr<const CudaContext> hold_cuda_context(int ordinal);

struct CudaDeviceOptions {
  int ordinal = 0;
  std::uint64_t capacity_bytes = 0;  // the cap; 0: the memory that is free now
};

// Throws InputError if there is no such GPU or it has less memory than the cap; DeviceError if
// the driver fails.
std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions& options);

}  // namespace sluice::device
