// Where the time of a simulated step goes on each rank of a world.
//
// A pipeline's bubble is that of its order of passes: the passes take what they take in the
// simulation, waits for sums of tensor groups included, and nothing else is in the way. So it is the
// bubble of the closed forms (orders/closed_forms.hpp) if all stages are alike. Of the time in which
// a rank waits for passes of other stages, the bubble comes first, then the time by which the longest
// stage exceeds the rank's own; messages have the rest.
#pragma once

#include <vector>

#include "engine/schedule/orders/stage_view.hpp"
#include "engine/schedule/schedule.hpp"
#include "engine/schedule/simulate/simulate.hpp"

namespace sluice::planner {

// Seconds of one rank. They add up to the step.
struct StepShares {
  double passes_s = 0;     // passes, with those that recompute
  double updates_s = 0;    // other work of the compute lane: sums, norms, updates
  double inner_s = 0;      // waits for sums of the tensor or context group
  double data_s = 0;       // waits for exchanges with other ranks of the stage
  double bubble_s = 0;     // waits for other stages that the order of passes has anyway
  double imbalance_s = 0;  // waits for stages that take longer than the rank's own
  double messages_s = 0;   // waits for messages between stages
  double transfers_s = 0;  // waits for copies, storage and the host's updates

  double total_s() const {
    return passes_s + updates_s + inner_s + data_s + bubble_s + imbalance_s + messages_s +
           transfers_s;
  }
};

struct WorldShares {
  std::vector<StepShares> ranks;
  std::vector<double> ends_s;  // by rank: the end of its last instruction
  // Of the order of passes alone: the longest span from a first to a last pass, and the part of it in
  // which not even the rank with the longest passes runs any. No rank has a larger share of a bubble.
  double span_s = 0, bubble_s = 0;
};

// world: of all ranks, or of one rank of each class, with its simulated times. pipeline: of any rank.
// pipeline_ranks: of each rank of the list, the rank of the pipeline that it stands for.
WorldShares world_shares(const schedule::Schedule& world,
                         const std::vector<schedule::InstructionTimes>& times,
                         const schedule::StageView& pipeline,
                         const std::vector<std::int32_t>& pipeline_ranks);

}  // namespace sluice::planner
