// The recomputations that recompute.policy allows.
#pragma once

#include <vector>

#include "engine/config/config.hpp"
#include "engine/schedule/compile/step_model.hpp"

namespace sluice::planner {

// A fixed policy has one; "auto" has none and then whole units. The list is never empty.
std::vector<schedule::Recomputation> recompute_choices(const config::Config& config,
                                                       const schedule::StepModel& model);

// Those that the search starts from: "auto" has every policy.
std::vector<schedule::Recomputation> search_recomputations(const config::Config& config,
                                                           const schedule::StepModel& model);

}  // namespace sluice::planner
