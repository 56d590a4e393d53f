// Bytes by tier, as budgets and needs are compared.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/memory_kinds.hpp"

namespace sluice::planner {

using TierBytes = std::array<std::uint64_t, kTierCount>;

// Whether a need is within the budget of every tier.
constexpr bool fits(const TierBytes& needed, const TierBytes& budgets) {
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    if (needed[tier] > budgets[tier]) return false;
  }
  return true;
}

// The bytes of each tier that are needed but not accounted for.
constexpr TierBytes beyond(const TierBytes& need, const TierBytes& accounted) {
  TierBytes extra{};
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    extra[tier] = need[tier] - std::min(need[tier], accounted[tier]);
  }
  return extra;
}

// The bytes of each tier that two needs leave.
constexpr TierBytes bytes_left(const TierBytes& room, const TierBytes& first,
                               const TierBytes& second) {
  TierBytes left{};
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    left[tier] = room[tier] - std::min(room[tier], first[tier] + second[tier]);
  }
  return left;
}

}  // namespace sluice::planner
