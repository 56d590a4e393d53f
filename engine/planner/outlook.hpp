// Figures of a finished plan for a person who decides about it: where the memory goes and why, the
// batch that would hide the traffic, and the wear of the drives. All are simulated or counted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/planner/critical_path.hpp"
#include "engine/planner/plan.hpp"

namespace sluice::planner {

// One row of the table of a plan's memory: "weights", "gradients", "optimizer", "activations", and
// "staging" for all else. The rows of a tier add up to its peak.
struct MemoryRow {
  std::string what;
  TierBytes bytes{};
  std::string why;
};
std::vector<MemoryRow> memory_rows(const Plan& plan);

// The most bytes that activations and saved values take at once, by tier, in a simulated step.
TierBytes activation_peak_bytes(const schedule::Schedule& training,
                                const std::vector<schedule::InstructionTimes>& times);

// The tokens of a step, reached by larger micro-batches, at which its passes take as long as the
// slowest of links, storage and the host's optimizer. Activations that leave the device grow with
// the tokens. No value: the passes never catch up.
struct BreakEven {
  double tokens = 0;
  Resource with = Resource::kStorage;
};
// machine: that of the plan's cost model. Precondition: the training schedule has its costs.
std::optional<BreakEven> break_even(const Plan& plan, double tokens_per_step,
                                    const schedule::SimulationModel& machine);

// The wear by steady training without pause; checkpoints are not counted.
struct Wear {
  double bytes_per_day = 0;
  std::optional<double> days_to_endurance;  // where something is written and endurance is known
};
Wear wear(std::uint64_t written_bytes_per_step, double step_s, double storage_tbw);

// The search as far as the plan remembers it, a line for each thing.
std::vector<std::string> search_lines(const Plan& plan);

}  // namespace sluice::planner
