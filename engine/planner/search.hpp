// The search for the fastest plan among the candidates of a configuration.
//
// It takes the candidates in their order of preference and simulates the first few that fit. From
// the fastest of these it tries single changes: another order of passes, another place of the
// update, other places of activations. Then it promotes state to faster tiers and, last, tunes the
// pieces of the update. Each change is compiled, held against the budgets, and simulated; it stays
// if the step gets no slower. Whether the configuration fits is settled by the first part alone.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/planner/candidates.hpp"
#include "engine/planner/cost_model.hpp"
#include "engine/planner/promote.hpp"
#include "engine/planner/spill_choice.hpp"
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
  schedule::Simulation simulation;  // of one training step; set by Search
};

// log_bytes: the size of a durable run's log of commits; 0 for other runs.
Compiled compile_candidate(const schedule::StepModel& model, const schedule::StepOptions& options,
                           std::uint64_t log_bytes);

class Search {
 public:
  // All arguments must outlive it.
  Search(const schedule::StepModel& model, const TierBytes& budgets, CostModel& costs,
         std::uint64_t log_bytes)
      : model_(model), budgets_(budgets), costs_(costs), log_bytes_(log_bytes) {}

  // Simulates the candidates of one group that fit, up to a limit: kSimulatedCandidates of the
  // groups that share the device's memory and as many of the others. Returns the need of the
  // group's most frugal candidate if it had to be compiled.
  std::optional<TierBytes> consider(const CandidateGroup& group);
  // Tries other orders, updates and places of activations. groups: all candidates.
  void improve(const config::Config& config, const std::vector<CandidateGroup>& groups);
  // Promotes state to faster tiers as long as no step gets slower.
  void fill(const config::Config& config);
  // Tries other pieces for an update that storage feeds. Pieces that make copies to and from the
  // device too short are slower and rejected. The simulation does not know all that they gain, so
  // a slightly longer simulated step is accepted.
  void refine();

  bool found() const { return best_.has_value(); }
  // The plan, and the search is over. Precondition: found().
  Compiled take();

 private:
  void move_update(const config::Config& config);
  void spill(const config::Config& config, const schedule::StepOptions& from);
  void spill_least(const config::Config& config, const schedule::StepOptions& options);
  bool consider_least(const SpillChoice& choice);
  void spill_elsewhere(const std::vector<CandidateGroup>& groups);
  bool promote_units(const Promotion& promotion);
  void consider_any(const CandidateGroup& group);
  void try_out(Compiled compiled, const CandidateGroup& group);
  void simulate_one(Compiled& compiled);

  const schedule::StepModel& model_;
  const TierBytes& budgets_;
  CostModel& costs_;
  std::uint64_t log_bytes_;
  std::optional<Compiled> best_;
  CandidateGroup best_group_;  // the group that best_ belongs to
  runtime::MemoryNeed least_;  // the most frugal candidate of the first group that fits
  std::size_t simulated_ = 0;
  bool sharing_ = false;  // whether the groups now considered share the device
};

}  // namespace sluice::planner
