// A multiple-choice knapsack over classes of equal units, with a budget for each tier.
//
// Each unit takes one option of its class: the values that it keeps, recomputes, or sends to
// another tier. An option holds bytes of the tiers and gives work to resources, such as the compute
// lane or a link. Each phase of a step is as long as its busiest resource works. The choice with the
// shortest phases is wanted, and among equals the one with the least work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/planner/price/tier_bytes.hpp"

namespace sluice::planner {

struct Knapsack {
  struct Resource {
    std::size_t phase = 0;
    double fixed_s = 0;  // of work that no option changes
  };
  struct Option {
    TierBytes bytes{};
    std::vector<double> seconds;  // by resource
  };
  struct UnitClass {
    std::int64_t count = 0;
    std::vector<Option> options;
  };
  TierBytes budgets{};
  std::vector<Resource> resources;
  std::vector<UnitClass> classes;
  double work_weight = 0;  // the part of the options' work that counts besides the phases

  // The number of units with each option, by class.
  using Counts = std::vector<std::vector<std::int64_t>>;
  struct Choice {
    double seconds = 0;  // the sum of all phases, and the weighted work
    Counts counts;
  };

  // The least sum within the budgets; nothing if no choice fits. gap: the share of the sum that the
  // choice may be above the least one. most_nodes: of the search; beyond it the best
  // choice so far is returned.
  std::optional<Choice> solve(double gap, std::size_t most_nodes) const;

  bool fits(const Counts& counts) const;
  double seconds_of(const Counts& counts) const;
};

}  // namespace sluice::planner
