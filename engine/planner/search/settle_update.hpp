// The last choices of a plan: deferred updates, and the ring by which updates run ahead of storage.
#pragma once

#include "engine/config/config.hpp"
#include "engine/planner/price/tier_bytes.hpp"
#include "engine/planner/trial/trials.hpp"
#include "engine/schedule/compile/step_model.hpp"

namespace sluice::planner {

// Tries other numbers of deferred updates exactly. Then gives the update's ring (update_stream.cpp)
// pinned memory that the plan `best` leaves of `budgets`, at most memory.update_ring, if that makes
// the step shorter: the least of a few sizes that is as fast as all of it. Call last, since any
// other use of the memory is better.
void settle_update(const config::Config& config, const schedule::StepModel& model,
                   const TierBytes& budgets, const Trials& trials, Compiled& best);

}  // namespace sluice::planner
