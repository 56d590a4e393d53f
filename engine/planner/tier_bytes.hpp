// Bytes by tier, as budgets and needs are compared.
#pragma once

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

}  // namespace sluice::planner
