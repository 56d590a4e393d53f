// Single changes of a configuration or a machine, each really planned: which of them make a refused
// configuration fit, and what the next best investments would gain.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/planner/trial/refusal.hpp"
#include "engine/train/plan/prepare.hpp"

namespace sluice::train {

// One change with the step that a new plan with it takes.
struct NextChange {
  std::string name;  // "+16GiB pinned", "train.accumulate=4"
  double step_s = 0;
  double tokens_per_s = 0;
  double gain = 0;  // its tokens a second, relative to those of the plan
  bool changes_results = false;
};

// More memory, one more drive, more micro-batches, and 8-bit moments, the largest gain first. Takes
// as long as planning so many times. A change that cannot be planned is left out.
// Precondition: prepared has a plan.
std::vector<NextChange> next_changes(const Prepared& prepared);

// Changes other than budgets with which the configuration of `refused` fits, each verified by
// planning it. Precondition: refused has a refusal.
std::vector<planner::OtherChange> changes_that_fit(const Prepared& refused);

}  // namespace sluice::train
