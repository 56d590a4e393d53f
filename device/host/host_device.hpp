// A device made of CPU memory. The whole engine runs on it if there is no GPU.
//
// Physical blocks are extents of one memfd. map() is mmap(MAP_FIXED | MAP_SHARED) into a reserved
// range, so remapping really moves pages, and one block can be mapped at several addresses. Each
// stream has a worker thread. If a link model is set, copies between host and device take its time:
// a copy holds its direction of the link for latency + bytes / bandwidth.
#pragma once

#include <cstdint>
#include <memory>

#include "device/device.hpp"

namespace sluice::device {

struct HostDeviceOptions {
  std::uint64_t capacity_bytes = 1 * kGiB;
  double link_bandwidth_bytes_per_s = 0.0;  // each direction; 0: as fast as memory
  double link_latency_s = 0.0;              // per copy
  // Reports unordered conflicting accesses of queued work (race_detector.hpp). It sees the
  // MemoryAccess lists given to launch and the ranges of copies. The next synchronize of the
  // offending stream throws DeviceError.
  bool detect_races = false;
};

std::unique_ptr<Device> make_host_device(const HostDeviceOptions& options);

}  // namespace sluice::device
