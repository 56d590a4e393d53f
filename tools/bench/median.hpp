// The median of a bench's rounds, and its confidence interval.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <vector>

namespace sluice::bench {

// The upper median: of an even number of values, the upper of the two in the middle. Precondition:
// there is at least one value.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Interval {
  double low = 0;
  double high = 0;
};

// A confidence interval of at least 95% for the median of the distribution, if the values are
// independent; the distribution may be any. It runs from the k-th smallest to the k-th largest
// value (the inverted sign test): k is the greatest number such that fewer than k of n fair coins
// fall heads with probability at most 2.5%. Returns nothing for fewer than six values: no k exists.
inline std::optional<Interval> interval_of_median(std::vector<double> values) {
  const std::size_t n = values.size();
  double chance = std::pow(0.5, static_cast<double>(n));  // of exactly k heads
  double below = 0;                                       // of fewer than k + 1
  std::size_t k = 0;
  while (below + chance <= 0.025) {
    below += chance;
    chance *= static_cast<double>(n - k) / static_cast<double>(k + 1);
    ++k;
  }
  if (k == 0) return std::nullopt;
  std::sort(values.begin(), values.end());
  return Interval{values[k - 1], values[n - k]};
}

}  // namespace sluice::bench
