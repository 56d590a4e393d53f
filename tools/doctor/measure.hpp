// Measuring a machine: the hardware profile that plans are made with.
#pragma once

#include <string>

#include "device/device.hpp"
#include "engine/planner/hardware_profile.hpp"
#include "kernels/kernels.hpp"
#include "tools/doctor/measure_kernels.hpp"

namespace sluice {

struct MeasureOptions {
  Kernels* kernels = nullptr;  // of the device that trains; used on the calling thread alone
  Device* device = nullptr;    // for launches, hand-overs and copies
  std::string storage_directory = ".";
  std::string storage_engine = "auto";
  double seconds_each = 0.25;  // about what one figure takes, but for the kernels
  GridOptions grids;
  // Of the trial file, at most (an eighth of what is free).
  std::uint64_t storage_bytes = 512 * kMiB;
  // Of each of the arrays that are streamed; the default passes the last-level caches in use.
  std::uint64_t array_bytes = 128 * kMiB;
};

// All cores, the best of several runs for memory, the mean for the rest. Needs up to 400 MiB of
// memory. InputError: a storage directory that cannot be used. IoError, TimeoutError.
HardwareProfile measure_hardware(const MeasureOptions& options);

}  // namespace sluice
