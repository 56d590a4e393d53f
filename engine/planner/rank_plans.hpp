// The steps of all ranks of a plan: their lists, the proof of all together, and their figures.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/planner/cost_model.hpp"
#include "engine/planner/rank_traffic.hpp"
#include "engine/planner/trials.hpp"
#include "engine/schedule/compile/step_model.hpp"

namespace sluice::planner {

std::int32_t ranks_of(const schedule::StepModel& model);
// The same step of a rank of the world.
schedule::StepModel step_of_rank(schedule::StepModel step, std::int32_t rank);
// Of one rank for each other size of shards, on each pipeline rank.
std::vector<schedule::StepModel> other_ranks(const schedule::StepModel& step);
// Of every rank, by number; empty without a pipeline.
std::vector<schedule::StepModel> ranks_of_pipeline(const schedule::StepModel& step);

// Whether the buffer is a home of state, and no shadow or log copy of one.
bool is_state_home(const schedule::Buffer& buffer);
RankFigures figures_of(const schedule::Schedule& training);

// Throws InternalError unless validate() accepts the schedule within `budgets`. A breach is a mistake
// in the passes that made the schedule, never the user's, and no memory or file is touched yet.
void check_schedule(const schedule::Schedule& schedule, const TierBytes& budgets);
// Proves the steps of a world with these schedules on rank 0, and returns the figures of each of its
// ranks.
std::vector<RankFigures> check_ranks(const schedule::StepModel& step, const Compiled& first,
                                     const TierBytes& budgets, CostModel& costs);

}  // namespace sluice::planner
