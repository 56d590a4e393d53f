// Measuring a GPU: the rates that plans price its lanes with.
#pragma once

#include <cstdint>

#include "base/units.hpp"
#include "device/device.hpp"
#include "engine/planner/price/hardware_profile.hpp"
#include "kernels/kernels.hpp"

namespace sluice::doctor {

struct GpuOptions {
  device::Device* device = nullptr;        // null: there is none to measure
  kernels::Kernels* kernels = nullptr;     // that run on it
  int rounds = 7;                          // the median of so many
  int repeats = 10;                        // of each figure in a round, timed by events together
  std::uint64_t array_bytes = 256 * kMiB;  // streamed and copied
  std::int64_t gemm_size = 4096;           // of the square matrices multiplied
};

// A profile of backend "cuda" (or whatever the device's is), for HardwareProfile::gpu. Needs about
// 5 * array_bytes of the device's memory and array_bytes of the host's, registered with the device.
// Throws DeviceError, OutOfMemory, TimeoutError.
planner::HardwareProfile measure_gpu(const GpuOptions& options);

}  // namespace sluice::doctor
