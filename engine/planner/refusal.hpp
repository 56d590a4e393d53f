// The answer where no plan fits: the bytes that are missing, and the smallest change that would
// fit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/planner/tier_bytes.hpp"
#include "engine/planner/unit_need.hpp"

namespace sluice::planner {

// One change that fits: keys and their least values.
using Suggestion = std::vector<std::pair<std::string, std::uint64_t>>;

struct Refusal {
  TierBytes needed_bytes{};             // of the candidate that comes nearest to fitting
  TierBytes available_bytes{};          // the budgets
  std::vector<Suggestion> suggestions;  // empty: this machine has no room for any
  // The largest unit, if one pass of it alone takes more than the device's budget.
  std::optional<UnitNeed> too_large;
  std::string sentence() const;
};

// Collects the least need of every placement and makes the refusal from them.
class Refuser {
 public:
  explicit Refuser(const TierBytes& budgets) : budgets_(budgets) {}

  void consider(const TierBytes& needed) { needs_.push_back(needed); }
  // Precondition: at least one need was considered, and none fits.
  Refusal refusal() const;

 private:
  std::optional<std::uint64_t> least_budget(std::size_t tier) const;
  TierBytes nearest() const;

  TierBytes budgets_;
  std::vector<TierBytes> needs_;
};

}  // namespace sluice::planner
