// The duration of a step if its optimizer took no time. It is the yardstick for placements that
// hide the optimizer.
#pragma once

#include "engine/schedule/simulate/simulate.hpp"

namespace sluice::planner {

// Simulates `schedule`, which must have costs, with updates at no cost. Transfers that only move
// the updates' state are free too. Everything else stays, dependencies included.
schedule::Simulation simulate_free_optimizer(schedule::Schedule schedule,
                                             const schedule::SimulationModel& model);

}  // namespace sluice::planner
