// Where the bytes of a striped space lie: a round of stripes that repeats over its paths.
//
// Byte b lies in stripe b / kStripeBytes. In each round path i has shares[i] stripes, spread over
// the round so that neighbours go to different paths wherever they can; the stripes of a path
// follow each other in its file. Immutable.
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
  static constexpr std::uint32_t kMostStripes = 4096;  // of a round

  // shares: as valid() wants them.
  explicit StripeLayout(std::vector<std::uint32_t> shares);
  // As many stripes on each path.
  static StripeLayout even(std::size_t paths);
  // At least one path, one stripe on each, and no more than kMostStripes in all.
  static bool valid(const std::vector<std::uint32_t>& shares);

  const std::vector<std::uint32_t>& shares() const { return shares_; }
  std::size_t paths() const { return shares_.size(); }
  std::size_t path_of(std::uint64_t offset) const { return place_of(offset).path; }
  std::uint64_t offset_in_file(std::uint64_t offset) const;
  // Of a space of so many bytes, those on one path.
  std::uint64_t bytes_on(std::size_t path, std::uint64_t bytes) const;

 private:
  struct Place {
    std::size_t path;
    std::uint32_t rank;  // of the stripe among its path's in the round
  };
  const Place& place_of(std::uint64_t offset) const {
    return round_[offset / kStripeBytes % round_.size()];
  }

  std::vector<std::uint32_t> shares_;
  std::vector<Place> round_;
};

// Shares for paths of such speeds (above 0, one for each path; any unit): the shortest round, of at
// most kMostMeasuredStripes for each path, whose slowest path takes within 2% of the least time
// that such rounds allow.
inline constexpr std::uint32_t kMostMeasuredStripes = 8;
std::vector<std::uint32_t> shares_by_speed(const std::vector<double>& speeds);

// Shares in a ratio that was asked for (above 0, one for each path; any unit): the ratio itself
// where it is of whole numbers and a round can hold them; else the shortest round that gives each
// path its part within 2%, or the one that comes nearest. The least must be at least
// 1/kMostStripes of their sum.
inline bool is_possible_ratio(const std::vector<double>& ratio) {
  const double total = std::accumulate(ratio.begin(), ratio.end(), 0.0);
  return *std::min_element(ratio.begin(), ratio.end()) * StripeLayout::kMostStripes >= total;
}
std::vector<std::uint32_t> shares_by_ratio(const std::vector<double>& ratio);

}  // namespace sluice::offload
