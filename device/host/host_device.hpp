// A device made of CPU memory: what the whole engine runs on where there is no GPU.
//
// Physical blocks are extents of one memfd; map() is mmap(MAP_FIXED | MAP_SHARED) into a reserved
// range, so remapping really moves pages and one block can be seen at several addresses. Each
// stream has a worker thread. Copies of kind host-to-device and device-to-host take the time of the
// link model where one is set (a copy holds its direction of the link for latency + bytes /
// bandwidth).
#pragma once

#include <cstdint>
#include <memory>

#include "device/device.hpp"

namespace sluice::device {

struct HostDeviceOptions {
  std::uint64_t capacity_bytes = 1 * kGiB;
  double link_bandwidth_bytes_per_s = 0.0;  // each direction; 0: as fast as memory
  double link_latency_s = 0.0;              // per copy
  // Report work that touches a range before the event that orders it (vector clocks per stream;
  // uses the MemoryAccess lists given to launch and the ranges of copies). Throws DeviceError at
  // the next synchronize of the offending stream.
  bool detect_races = false;
};

std::unique_ptr<Device> make_host_device(const HostDeviceOptions& options);

}  // namespace sluice::device
