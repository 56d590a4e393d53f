// Compiles plans and measures them: exactly, or coarsely in a fraction of the time.
//
// A coarse trial stands for a step that would have far more instructions. It has at most four
// micro-batches, since those between the first and the last are alike, and large pieces of state.
// Times and bytes of the missing micro-batches are added in proportion. An exact trial
// confirms a coarse one before a plan is taken.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "engine/planner/cost_model.hpp"
#include "engine/planner/tier_bytes.hpp"
#include "engine/runtime/run_memory.hpp"
#include "engine/schedule/compile/step_kind.hpp"
#include "engine/schedule/simulate/simulate.hpp"

namespace sluice::planner {

// A candidate with its schedules and the memory that a run of them needs.
struct Compiled {
  schedule::StepOptions options;
  schedule::StepSchedules schedules;
  runtime::MemoryNeed need;
  schedule::Simulation simulation;  // of one training step; empty until it is simulated
};

struct Trial {
  TierBytes need{};
  double seconds = 0;  // of one training step
};

class Trials {
 public:
  // All arguments must outlive it. log_bytes: the size of a durable run's log of commits; 0 for
  // other runs.
  Trials(const schedule::StepModel& model, CostModel& costs, std::uint64_t log_bytes)
      : model_(model), costs_(costs), log_bytes_(log_bytes) {}

  // The need is up to a few percent above the exact one, since packings are coarse too.
  const Trial& coarse(const schedule::StepOptions& options);
  // The need alone, from a coarse schedule that is packed as an exact one is.
  const TierBytes& coarse_need(const schedule::StepOptions& options);
  // The time of an exact training step, and its need; other steps of the run may need more.
  Trial training(const schedule::StepOptions& options) const;
  Compiled exact(const schedule::StepOptions& options) const;
  void simulate(Compiled& compiled) const;
  // Trials made so far, without repeats.
  std::size_t count() const { return known_.size(); }

 private:
  enum class Wanted { kAll, kNeed };
  Trial measure(const schedule::StepOptions& options, Wanted wanted) const;

  const schedule::StepModel& model_;
  CostModel& costs_;
  std::uint64_t log_bytes_;
  std::map<std::string, Trial> known_;
  std::map<std::string, Trial> known_needs_;
};

}  // namespace sluice::planner
