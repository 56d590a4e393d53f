// What a step would take if its optimizer took no time: the yardstick of placements that hide it.
#pragma once

#include "engine/schedule/simulate/simulate.hpp"

namespace sluice {

// schedule: with costs. Simulates it with updates, and the transfers that only bring their state
// and take it back, at no cost; all else, dependencies too, as it is.
Simulation simulate_free_optimizer(Schedule schedule, const SimulationModel& model);

}  // namespace sluice
