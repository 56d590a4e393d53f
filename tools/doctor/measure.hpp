// Measuring a machine: the hardware profile that plans are made with.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "device/device.hpp"
#include "engine/planner/price/hardware_profile.hpp"
#include "kernels/kernels.hpp"
#include "tools/doctor/measure_disk.hpp"
#include "tools/doctor/measure_gpu.hpp"
#include "tools/doctor/measure_kernels.hpp"
#include "tools/doctor/measure_links.hpp"

namespace sluice::doctor {

struct MeasureOptions {
  device::Device* device = nullptr;  // for launches, hand-overs and copies
  // Every figure is measured once a round, and the median is kept: a disturbance of the machine
  // lasts for seconds.
  int rounds = 7;
  double seconds_each = 0.036;  // approximate time of one figure in a round; not of kernels
  DiskOptions disk;
  KernelOptions kernel;
  GpuOptions gpu;  // without a device: none is measured
  LinkOptions links;
  // Called before each measurement, with words for people: "round 2 of 7: storage". May be empty.
  std::function<void(const std::string&)> begins = {};
  // Size of each array that is streamed; the default exceeds the last-level caches in use.
  std::uint64_t array_bytes = 128 * kMiB;
};

// Needs up to 700 MiB of memory. InputError: a storage directory that cannot be used. IoError,
// TimeoutError.
planner::HardwareProfile measure_hardware(const MeasureOptions& options);

}  // namespace sluice::doctor
