// Rounds of stripes, and the choice of their shares.
//
// A round is laid out by smooth weighted round robin: each turn adds every path's share to its
// credit, and the path with the highest credit takes the stripe and pays the sum of all shares. The
// order is deterministic, spreads each path evenly, and gives path i exactly shares[i] stripes.
//
// shares_by_speed() tries rounds of growing length. Within a length it gives each further stripe to
// the path that would then finish first, which minimizes the time of the slowest path.
// shares_by_ratio() rounds the requested parts for each length. Both searches are bounded by
// kMostStripes and run once per run.
#include "offload/stripe_layout.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.hpp"

namespace sluice::offload {
namespace {

// Distributes a round of `total` stripes, at least one per path. Gives each further stripe to the
// path with the earliest finish time after receiving it.
std::vector<std::uint32_t> apportion(const std::vector<double>& speeds, std::uint32_t total) {
  std::vector<std::uint32_t> shares(speeds.size(), 1);
  for (auto given = static_cast<std::uint32_t>(speeds.size()); given < total; ++given) {
    std::size_t first = 0;
    for (std::size_t i = 1; i < speeds.size(); ++i) {
      if ((shares[i] + 1) / speeds[i] < (shares[first] + 1) / speeds[first]) first = i;
    }
    ++shares[first];
  }
  return shares;
}

// Returns the time of the slowest path, per stripe of the round.
double time_of(const std::vector<std::uint32_t>& shares, const std::vector<double>& speeds) {
  double longest = 0;
  for (std::size_t i = 0; i < shares.size(); ++i)
    longest = std::max(longest, shares[i] / speeds[i]);
  return longest / std::accumulate(shares.begin(), shares.end(), 0u);
}

// Returns the ratio in lowest whole numbers; empty if it has none that fit a round.
std::vector<std::uint32_t> whole_shares(const std::vector<double>& ratio) {
  constexpr double kMostExact = 0x1p53;
  std::uint64_t divisor = 0;
  for (const double part : ratio) {
    if (part != std::floor(part) || part > kMostExact) return {};
    divisor = std::gcd(divisor, static_cast<std::uint64_t>(part));
  }
  const double total = std::accumulate(ratio.begin(), ratio.end(), 0.0);
  if (total / static_cast<double>(divisor) > StripeLayout::kMostStripes) return {};
  std::vector<std::uint32_t> shares;
  for (const double part : ratio) {
    shares.push_back(static_cast<std::uint32_t>(static_cast<std::uint64_t>(part) / divisor));
  }
  return shares;
}

// Returns the largest relative deviation of a path's share from its part.
double error_of(const std::vector<std::uint32_t>& shares, const std::vector<double>& parts) {
  const double total = std::accumulate(shares.begin(), shares.end(), 0.0);
  double most = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    most = std::max(most, std::abs(shares[i] / total / parts[i] - 1));
  }
  return most;
}

}  // namespace

StripeLayout::StripeLayout(std::vector<std::uint32_t> shares) : shares_(std::move(shares)) {
  SLUICE_CHECK(valid(shares_));
  const std::int64_t total = std::accumulate(shares_.begin(), shares_.end(), std::int64_t{0});
  // Smooth weighted round robin (nginx): each turn every path gains its share, the richest pays.
  std::vector<std::int64_t> credit(shares_.size(), 0);
  std::vector<std::uint32_t> ranks(shares_.size(), 0);
  for (std::int64_t stripe = 0; stripe < total; ++stripe) {
    for (std::size_t i = 0; i < shares_.size(); ++i) credit[i] += shares_[i];
    const auto richest =
        static_cast<std::size_t>(std::max_element(credit.begin(), credit.end()) - credit.begin());
    credit[richest] -= total;
    round_.push_back({richest, ranks[richest]++});
  }
}

StripeLayout StripeLayout::even(std::size_t paths) {
  return StripeLayout(std::vector<std::uint32_t>(paths, 1));
}

bool StripeLayout::valid(const std::vector<std::uint32_t>& shares) {
  std::uint64_t total = 0;
  for (const std::uint32_t share : shares) {
    if (share == 0) return false;
    total += share;
  }
  return total > 0 && total <= kMostStripes;
}

std::uint64_t StripeLayout::offset_in_file(std::uint64_t offset) const {
  const Place& place = place_of(offset);
  const std::uint64_t rounds = offset / kStripeBytes / round_.size();
  return (rounds * shares_[place.path] + place.rank) * kStripeBytes + offset % kStripeBytes;
}

std::uint64_t StripeLayout::bytes_on(std::size_t path, std::uint64_t bytes) const {
  const std::uint64_t whole = bytes / kStripeBytes;
  const std::uint64_t rest = whole % round_.size();
  std::uint64_t stripes = whole / round_.size() * shares_[path];
  for (std::uint64_t i = 0; i < rest; ++i) stripes += round_[i].path == path ? 1 : 0;
  const bool holds_last = round_[rest].path == path;
  return stripes * kStripeBytes + (holds_last ? bytes % kStripeBytes : 0);
}

std::vector<std::uint32_t> shares_by_speed(const std::vector<double>& speeds) {
  constexpr double kSlack = 1.02;
  SLUICE_CHECK(!speeds.empty());
  const auto paths = static_cast<std::uint32_t>(speeds.size());
  SLUICE_CHECK(paths <= StripeLayout::kMostStripes / kMostMeasuredStripes);
  double least = std::numeric_limits<double>::infinity();
  for (std::uint32_t total = paths; total <= paths * kMostMeasuredStripes; ++total) {
    least = std::min(least, time_of(apportion(speeds, total), speeds));
  }
  for (std::uint32_t total = paths;; ++total) {
    std::vector<std::uint32_t> shares = apportion(speeds, total);
    if (time_of(shares, speeds) <= least * kSlack) return shares;
  }
}

std::vector<std::uint32_t> shares_by_ratio(const std::vector<double>& ratio) {
  constexpr double kSlack = 0.02;
  SLUICE_CHECK(!ratio.empty() && is_possible_ratio(ratio));
  if (std::vector<std::uint32_t> whole = whole_shares(ratio); !whole.empty()) return whole;
  const double total = std::accumulate(ratio.begin(), ratio.end(), 0.0);
  std::vector<double> parts = ratio;
  for (double& part : parts) part /= total;
  std::vector<std::uint32_t> nearest(ratio.size(), 1);
  for (auto round = static_cast<std::uint32_t>(ratio.size()); round <= StripeLayout::kMostStripes;
       ++round) {
    std::vector<std::uint32_t> shares;
    for (const double part : parts) {
      shares.push_back(std::max(1u, static_cast<std::uint32_t>(std::lround(part * round))));
    }
    // The rounded parts may add up to more stripes than the round has.
    if (StripeLayout::valid(shares) && error_of(shares, parts) < error_of(nearest, parts)) {
      nearest = std::move(shares);
    }
    if (error_of(nearest, parts) <= kSlack) break;
  }
  return nearest;
}

}  // namespace sluice::offload
