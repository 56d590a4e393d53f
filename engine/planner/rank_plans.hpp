// The steps of all ranks of a plan: their lists, the proof of all together, and their figures.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/planner/critical_path.hpp"
#include "engine/planner/price/cost_model.hpp"
#include "engine/planner/price/rank_traffic.hpp"
#include "engine/planner/trial/rank_classes.hpp"
#include "engine/planner/trial/trials.hpp"
#include "engine/schedule/compile/step_model.hpp"

namespace sluice::planner {

std::int32_t ranks_of(const schedule::StepModel& model);
// The same step of a rank of the world.
schedule::StepModel step_of_rank(schedule::StepModel step, std::int32_t rank);
// Of one rank for each other size of shards, on each pipeline rank.
std::vector<schedule::StepModel> other_ranks(const schedule::StepModel& step);
// Those of them that are likely to need most: of pipeline ranks with equal units only the first one
// with the most micro-batches in flight.
std::vector<schedule::StepModel> likely_fullest_ranks(const schedule::StepModel& step);
// Of every rank, by number; empty without an order of passes.
std::vector<schedule::StepModel> ranks_of_pipeline(const schedule::StepModel& step);
// The models of each class's first rank, by the class's number.
std::vector<schedule::StepModel> ranks_of_classes(const schedule::StepModel& step,
                                                  const RankClasses& classes);

// Whether the buffer is a home of state, and no shadow or log copy of one.
bool is_state_home(const schedule::Buffer& buffer);
RankFigures figures_of(const schedule::Schedule& training, const RankLinks& links);

// Throws InternalError unless validate() accepts the schedule within `budgets`. A breach is a mistake
// in the passes that made the schedule, never the user's, and no memory or file is touched yet.
void check_schedule(const schedule::Schedule& schedule, const TierBytes& budgets);

// A step of a world, by ranks or by classes of ranks.
struct PlannedWorld {
  std::vector<RankFigures> figures;
  // The rest is empty for ranks without stages that are planned one by one: rank 0, which has the
  // largest shards, is simulated alone.
  schedule::Simulation simulation;
  std::vector<std::vector<schedule::InstructionTimes>> times;  // as figures, of the rank's list
  CriticalPath path;                                           // from rank to rank
  double span_s = 0, bubble_s = 0;  // of the order of passes (WorldShares)
  bool is_simulated() const { return !times.empty(); }
};
// Proves the steps of a world with these schedules on rank 0.
PlannedWorld check_ranks(const schedule::StepModel& step, const Compiled& first,
                         const TierBytes& budgets, CostModel& costs);
// One rank of each class stands for all. Nothing is proved: such a plan is no run's.
PlannedWorld simulate_classes(const schedule::StepModel& step, const RankClasses& classes,
                              const Compiled& first, CostModel& costs);

}  // namespace sluice::planner
