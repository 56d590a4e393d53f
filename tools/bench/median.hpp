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

// A confidence interval of at least 95% for the median of any distribution, if the values are
// independent. It runs from the k-th smallest to the k-th largest value (inverted sign test). k is
// the greatest number with P(X < k) <= 2.5%, where X is the number of heads in n tosses of a fair
// coin. Returns nothing for fewer than six values, because k would be 0.
inline std::optional<Interval> interval_of_median(std::vector<double> values) {
  const std::size_t n = values.size();
  double chance = std::pow(0.5, static_cast<double>(n));  // of exactly k heads
  double below = 0;                                       // of fewer than k
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
