// What a step would take if its optimizer took no time: the yardstick of placements that hide it.
#pragma once

#include "engine/schedule/simulate/simulate.hpp"

namespace sluice::planner {

// schedule: with costs. Simulates it with updates, and the transfers that only bring their state
// and take it back, at no cost; all else, dependencies too, as it is.
schedule::Simulation simulate_free_optimizer(schedule::Schedule schedule,
                                             const schedule::SimulationModel& model);

}  // namespace sluice::planner
