// The size of the ring by which updates run ahead of the storage that feeds them.
#pragma once

#include <cstdint>

#include "engine/planner/tier_bytes.hpp"
#include "engine/planner/trials.hpp"
#include "engine/schedule/compile/step_model.hpp"

namespace sluice::planner {

// Gives the update's ring (update_stream.cpp) pinned memory that the plan `best` leaves of
// `budgets`, at most `most_bytes`, if that makes the step shorter: the least of a few sizes that is
// as fast as all of it. Call last, since any other use of the memory is better.
void deepen_update_ring(const schedule::StepModel& model, const TierBytes& budgets,
                        std::uint64_t most_bytes, const Trials& trials, Compiled& best);

}  // namespace sluice::planner
