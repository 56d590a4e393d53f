// The layout of a striped space: a round of stripes that repeats over its paths.
//
// Byte b lies in stripe b / kStripeBytes. Path i has shares[i] stripes in each round, spread so
// that neighbouring stripes are on different paths where possible. The stripes of a path follow
// each other in its file. Immutable.
//
//     shares {2, 1}:  space   | s0 | s1 | s2 | s3 | s4 | s5 | ...
//                     path      0    1    0    0    1    0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/units.hpp"

namespace sluice::offload {

class StripeLayout {
 public:
  static constexpr std::uint64_t kStripeBytes = 4 * kMiB;
  static constexpr std::uint32_t kMostStripes = 4096;  // in a round

  // shares: valid() must hold.
  explicit StripeLayout(std::vector<std::uint32_t> shares);
  // One stripe of each path per round.
  static StripeLayout even(std::size_t paths);
  // Whether there is a path, each has at least one stripe, and all have at most kMostStripes.
  static bool valid(const std::vector<std::uint32_t>& shares);

  const std::vector<std::uint32_t>& shares() const { return shares_; }
  std::size_t paths() const { return shares_.size(); }
  std::size_t path_of(std::uint64_t offset) const { return place_of(offset).path; }
  std::uint64_t offset_in_file(std::uint64_t offset) const;
  // Bytes that a path holds of a space of `bytes`.
  std::uint64_t bytes_on(std::size_t path, std::uint64_t bytes) const;

 private:
  struct Place {
    std::size_t path;
    std::uint32_t rank;  // index of the stripe among those of its path in the round
  };
  const Place& place_of(std::uint64_t offset) const {
    return round_[offset / kStripeBytes % round_.size()];
  }

  std::vector<std::uint32_t> shares_;
  std::vector<Place> round_;
};

// Returns shares for paths with the given speeds (positive, one for each path, any unit). Rounds
// have at most kMostMeasuredStripes stripes per path. The result is the shortest round in which the
// slowest path takes at most 2% longer than in the best one.
inline constexpr std::uint32_t kMostMeasuredStripes = 8;
std::vector<std::uint32_t> shares_by_speed(const std::vector<double>& speeds);

// Returns shares in a requested ratio (positive, one for each path, any unit). A ratio of whole
// numbers that fits a round is used as it is. Otherwise the result is the shortest round that gives
// each path its part within 2%, or else the nearest one. The smallest part must be at least
// 1/kMostStripes of the sum.
inline bool is_possible_ratio(const std::vector<double>& ratio) {
  const double total = std::accumulate(ratio.begin(), ratio.end(), 0.0);
  return *std::min_element(ratio.begin(), ratio.end()) * StripeLayout::kMostStripes >= total;
}
std::vector<std::uint32_t> shares_by_ratio(const std::vector<double>& ratio);

}  // namespace sluice::offload
