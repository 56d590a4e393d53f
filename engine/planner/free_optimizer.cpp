// The schedule keeps its instructions, its dependencies and its order. Only costs change: updates
// take no time, and neither do storage transfers of buffers that exist for updates alone. A buffer
// counts as such if an update uses it and it is no home, since homes serve other passes too. The
// difference to the plain simulation is the time that the optimizer adds to a step.
#include "engine/planner/free_optimizer.hpp"

#include <algorithm>

namespace sluice::planner {

schedule::Simulation simulate_free_optimizer(schedule::Schedule schedule,
                                             const schedule::SimulationModel& model) {
  // Pieces that pass through memory for an update alone: a home, a gradient's too, is nobody's own.
  std::vector<bool> of_update(schedule.buffers.size(), false);
  for (const schedule::Instruction& instruction : schedule.instructions) {
    if (instruction.op != schedule::Op::kOptimizerStep) continue;
    for (const auto* uses : {&instruction.reads, &instruction.writes}) {
      for (const schedule::Use& use : *uses) {
        of_update[use.buffer] = !schedule.buffers[use.buffer].persistent;
      }
    }
  }
  // Only transfers to and from storage are free; copies to the device also serve the passes.
  const auto moves_state = [&](const schedule::Instruction& instruction) {
    const auto among = [&](const schedule::Uses& uses) {
      return std::any_of(uses.begin(), uses.end(),
                         [&](const schedule::Use& use) { return of_update[use.buffer]; });
    };
    const bool storage = instruction.op == schedule::Op::kStorageRead ||
                         instruction.op == schedule::Op::kStorageWrite;
    return storage && (among(instruction.reads) || among(instruction.writes));
  };
  for (schedule::Instruction& instruction : schedule.instructions) {
    if (instruction.op != schedule::Op::kOptimizerStep && !moves_state(instruction)) continue;
    instruction.cost_s = 0;
    instruction.bytes = 0;
  }
  return schedule::simulate(schedule, model);
}

}  // namespace sluice::planner
