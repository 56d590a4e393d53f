// The pipeline of a configuration: its order of passes, and the cut of the model into stages.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/planner/price/cost_model.hpp"
#include "engine/schedule/compile/step_model.hpp"

namespace sluice::planner {

// The order that parallel.schedule names; empty without a pipeline. Throws InputError, one sentence,
// where the order cannot run, would not have one rank's bits, or is of other ranks or micro-batches.
schedule::PipelineOrder choose_order(const config::Config& config);

// Whether an order leads the passes: of a pipeline, or of a server that makes several updates.
inline bool has_order(const config::Config& config) {
  return config.parallel.pipeline > 1 || config.parallel.delays_updates();
}
// Tells the view of data-parallel ranks with a server how it serves.
void set_server_mode(const config::Config& config, schedule::RankView& view);

// Cuts of the model that may be the best: the one in which the stage with the longest passes is as
// short as possible, the one in which the stage with the most bytes has as few as possible, and one
// between them; equal ones once. Bytes are those of state and of the activations that the order has
// in flight. With parallel.schedule = "pipedream" there is one cut, into equally many units, since it
// decides the results. Throws InputError if there are more stages than units.
using StageCut = std::vector<schedule::UnitRange>;
std::vector<StageCut> stage_cuts(const config::Config& config, const schedule::StepModel& model,
                                 const schedule::PipelineOrder& order, CostModel& costs);

// Throws InputError unless the stages, which another rank may have sent, are those of this order and
// cover the units.
void check_stages(const std::vector<schedule::UnitRange>& stages,
                  const schedule::PipelineOrder& order, std::size_t units);

// The same recomputation, but the last unit of each stage keeps its output, which another rank reads.
schedule::Recomputation cut_at_stages(schedule::Recomputation recompute,
                                      const std::vector<schedule::UnitRange>& stages);

}  // namespace sluice::planner
