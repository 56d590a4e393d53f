// The least time that a step of a pipeline can take, without compiling it.
#pragma once

#include "engine/config/config.hpp"
#include "engine/planner/price/cost_model.hpp"
#include "engine/schedule/compile/step_model.hpp"

namespace sluice::planner {

// No plan of the configuration takes less, whichever of the cuts into stages it has. Precondition:
// `model` is the first rank's, before its pipeline is cut. Throws InputError as choose_order does.
double least_pipeline_s(const config::Config& config, const schedule::StepModel& model,
                        CostModel& costs);

}  // namespace sluice::planner
