// Compiles plans and measures them: exactly, or coarsely in a fraction of the time.
//
// A coarse trial stands for a step that would have far more instructions. It has at most three
// micro-batches, since those between the first and the last are alike, and large pieces of state.
// Times and bytes of the missing micro-batches are added. An exact trial confirms a coarse one
// before a plan is taken.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "allocator/packing/arena_packing.hpp"
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
  // The times of one training step; empty until it is simulated.
  schedule::Simulation simulation;
  std::vector<schedule::InstructionTimes> times;
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
  // The need of exact(), in half of its time.
  TierBytes exact_need(const schedule::StepOptions& options) const;
  // The time of an exact training step, and its need; other steps of the run may need more.
  Trial training(const schedule::StepOptions& options) const;
  Compiled exact(const schedule::StepOptions& options) const;
  void simulate(Compiled& compiled) const;
  // Trials made so far, without repeats.
  std::size_t count() const { return known_.size(); }
  // And the instructions of their schedules: the work that they took.
  std::uint64_t instructions() const { return instructions_; }

 private:
  Trial measure(const schedule::StepOptions& options);
  TierBytes measure_need(const schedule::StepOptions& options) const;
  schedule::Schedule coarse_step(const schedule::StepOptions& options,
                                 std::int32_t microbatches) const;
  TierBytes need_of(const schedule::Schedule& training) const;
  TierBytes need_of_all(const schedule::StepOptions& options, TierBytes need, std::int32_t few,
                        packing::PackingEffort effort) const;

  bool takes_whole_tensors() const { return kernels::needs_whole_tensors(model_.optimizer); }

  const schedule::StepModel& model_;
  CostModel& costs_;
  std::uint64_t log_bytes_;
  std::uint64_t instructions_ = 0;
  std::map<std::string, Trial> known_;
  std::map<std::string, TierBytes> known_needs_;
};

}  // namespace sluice::planner
