#include "engine/planner/free_optimizer.hpp"

#include <algorithm>

namespace sluice {

Simulation simulate_free_optimizer(Schedule schedule, const SimulationModel& model) {
  // Pieces that pass through memory for an update alone: a home, a gradient's too, is nobody's own.
  std::vector<bool> of_update(schedule.buffers.size(), false);
  for (const Instruction& instruction : schedule.instructions) {
    if (instruction.op != Op::kOptimizerStep) continue;
    for (const auto* uses : {&instruction.reads, &instruction.writes}) {
      for (const Use& use : *uses) {
        of_update[use.buffer] = !schedule.buffers[use.buffer].persistent;
      }
    }
  }
  const auto moves_state = [&](const Instruction& instruction) {
    const auto among = [&](const std::vector<Use>& uses) {
      return std::any_of(uses.begin(), uses.end(),
                         [&](const Use& use) { return of_update[use.buffer]; });
    };
    const bool storage = instruction.op == Op::kStorageRead || instruction.op == Op::kStorageWrite;
    return storage && (among(instruction.reads) || among(instruction.writes));
  };
  for (Instruction& instruction : schedule.instructions) {
    if (instruction.op != Op::kOptimizerStep && !moves_state(instruction)) continue;
    instruction.cost_s = 0;
    instruction.bytes = 0;
  }
  return simulate(schedule, model);
}

}  // namespace sluice
