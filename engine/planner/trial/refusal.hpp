// The answer where no plan fits: the bytes that are missing, and the smallest change that would
// fit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/planner/choice/unit_need.hpp"
#include "engine/planner/price/tier_bytes.hpp"

namespace sluice::planner {

// One change that fits: keys and their least values.
using Suggestion = std::vector<std::pair<std::string, std::uint64_t>>;

// One change of another kind that fits with the budgets as they are.
struct OtherChange {
  std::vector<std::pair<std::string, std::string>> settings;  // keys and their values
  bool changes_results = false;                               // of the training
};

struct Refusal {
  TierBytes needed_bytes{};             // of the candidate that comes nearest to fitting
  TierBytes available_bytes{};          // the budgets
  std::vector<Suggestion> suggestions;  // empty: this machine has no room for any
  std::vector<OtherChange> other_changes;
  // The largest unit, if one pass of it alone takes more than the device's budget.
  std::optional<UnitNeed> too_large;
  // The reason why the storage paths give no room, if it is not their size: "memory.storage_paths:
  // '/proc' cannot be written". Empty: there is none.
  std::string storage_obstacle;
  std::string sentence() const;
};

// Collects the least need of every placement and makes the refusal from them.
class Refuser {
 public:
  explicit Refuser(const TierBytes& budgets) : budgets_(budgets) {}

  void consider(const TierBytes& needed) { needs_.push_back(needed); }
  // Whether a need could change the refusal; one that is at least as large in every tier could not
  // either.
  bool could_matter(const TierBytes& needed) const;
  // Bytes by which a need exceeds the budgets, summed over tiers. They are counted as suggestions
  // round them: two needs within one step of each other lead to the same suggestion.
  std::uint64_t shortfall(const TierBytes& needed) const;
  // Precondition: at least one need was considered, and none fits.
  Refusal refusal() const;

 private:
  // The least value of one budget with which some candidate fits, if the other budgets stay.
  std::optional<std::uint64_t> least_budget(std::size_t tier) const;
  // The candidate with the least shortfall.
  TierBytes nearest() const;
  // Whether a need fits all budgets but that of `tier`.
  bool fits_others(const TierBytes& needed, std::size_t tier) const;

  TierBytes budgets_;
  std::vector<TierBytes> needs_;
};

}  // namespace sluice::planner
