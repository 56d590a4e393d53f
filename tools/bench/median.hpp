// Of the rounds of a bench.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <vector>

namespace sluice::bench {

// values: at least one. Of an even number, the upper of the two in the middle.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Interval {
  double low = 0;
  double high = 0;
};

// Where the median lies that more such rounds would come to, right in at least 95% of cases if they
// are independent, whatever the distribution: the k-th smallest and the k-th largest value, with k
// the greatest for which fewer than k of so many fair coins fall heads in at most 2.5% (the sign
// test turned round). Nothing for fewer than six rounds, which cannot tell.
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
