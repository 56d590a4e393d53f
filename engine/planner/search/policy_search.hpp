// The search with recompute.policy = "auto" in addition to those with each policy by name.
//
// A search is greedy, and the many shapes of "auto" may lead it past the best plan of one policy. So
// where trials are cheap, every other policy is searched by itself. "auto" goes on from the plans
// that it finds, and takes the fastest of all, so it is never slower than a policy by name.
#pragma once

#include "engine/config/config.hpp"
#include "engine/planner/search/search.hpp"

namespace sluice::planner {

// The fastest plan of `search`, and of the named policies. All must be made for the same model and
// trials. Precondition: search.fits() returned true.
Compiled search_policies(Search& search, const config::Config& config,
                         const schedule::StepModel& model, const TierBytes& budgets,
                         CostModel& costs, Trials& trials);

}  // namespace sluice::planner
