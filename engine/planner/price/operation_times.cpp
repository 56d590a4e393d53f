// A grid has measured times at a few sizes along up to three axes. Between the points it
// interpolates the logarithm of the time per unit of work, linearly in the logarithms of the sizes,
// over the eight corners of the cell that contains the size. Work is the product of the sizes. So a
// time grows with the work even where the rate is flat, and the rate changes smoothly from small to
// large operations. Outside the grid the rate of the nearest point holds.
#include "engine/planner/price/operation_times.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"

namespace sluice::planner {
namespace {

constexpr std::array<std::string_view, kTimedOperationCount> kNames{
    "gemm_nn",
    "gemm_nt",
    "gemm_tn",
    "head_forward",
    "head_backward",
    "attention_forward",
    "attention_backward",
    "norm_forward",
    "norm_backward_input",
    "norm_backward_weight",
    "column_sum",
    "add",
    "gelu_forward",
    "gelu_backward",
    "swiglu_forward",
    "swiglu_backward",
    "rope",
    "embedding_forward",
    "embedding_backward",
    "accumulate",
    "squared_norm",
    "adamw",
    "copy",
    "storage_read",
    "storage_write",
};

// The place of a size on an axis: between points `at` and `at + 1` (or on the last), and its
// distance.
struct Position {
  std::size_t at = 0;
  double share = 0;
};

// Sizes outside the axis take the nearest end with a distance of zero.
Position locate(const std::vector<std::int64_t>& axis, std::int64_t size) {
  if (size <= axis.front()) return {0, 0};
  if (size >= axis.back()) return {axis.size() - 1, 0};
  const auto above = std::upper_bound(axis.begin(), axis.end(), size);
  const auto at = static_cast<std::size_t>(above - axis.begin()) - 1;
  const double low = std::log(static_cast<double>(axis[at]));
  const double high = std::log(static_cast<double>(axis[at + 1]));
  return {at, (std::log(static_cast<double>(size)) - low) / (high - low)};
}

}  // namespace

std::string_view timed_operation_name(TimedOperation operation) {
  return kNames[static_cast<std::size_t>(operation)];
}

std::optional<TimedOperation> timed_operation_named(std::string_view name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<TimedOperation>(found - kNames.begin());
}

double OperationGrid::seconds_at(const OperationSize& size) const {
  SLUICE_CHECK(seconds.size() == points());
  std::array<Position, 3> positions;
  double work = 1;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    positions[axis] = locate(axes[axis], size[axis]);
    work *= static_cast<double>(std::max(size[axis], axes[axis].front()));
  }
  double log_rate = 0;  // of seconds per unit of work
  for (unsigned corner = 0; corner < 8; ++corner) {
    double weight = 1;
    double corner_work = 1;
    std::size_t index = 0;
    for (std::size_t axis = 0; axis < 3; ++axis) {
      const bool above = (corner >> axis & 1u) != 0;
      weight *= above ? positions[axis].share : 1 - positions[axis].share;
      if (weight == 0) break;
      const std::size_t at = positions[axis].at + (above ? 1 : 0);
      index = index * axes[axis].size() + at;
      corner_work *= static_cast<double>(axes[axis][at]);
    }
    if (weight > 0) log_rate += weight * std::log(seconds[index] / corner_work);
  }
  return std::exp(log_rate) * work;
}

}  // namespace sluice::planner
