// The times of every kernel that a step spends its time in, on a grid of sizes.
#pragma once

#include <cstdint>
#include <vector>

#include "base/units.hpp"
#include "engine/planner/operation_times.hpp"
#include "kernels/kernels.hpp"

namespace sluice {

struct GridOptions {
  // Every point is measured once a round, and the median round kept: what disturbs a machine lasts
  // for seconds.
  int rounds = 7;
  double seconds_each = 0.002;  // of one point in one round, about
  // State kernels walk through this much memory, as training does; others repeat in place.
  std::uint64_t state_bytes = 128 * kMiB;
  std::size_t points_each_axis = 8;  // at most: the smallest
};

// Both dtypes of every kernel in TimedOperation; norms as RMSNorm. Uses the calling thread and the
// kernels' own.
std::vector<OperationGrid> measure_kernel_grids(Kernels& kernels, const GridOptions& options);

}  // namespace sluice
