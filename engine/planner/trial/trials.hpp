// Compiles plans and measures them: exactly, or coarsely in a fraction of the time.
//
// A coarse trial has few micro-batches, since those between the first and the last are alike, and a
// bounded number of pieces of state (coarse_step.hpp). Times and bytes of the missing micro-batches are
// added. An exact trial of all steps of a run confirms it before a plan is taken.
//
// With several ranks one is tried, the one with the largest shards. Exact needs are those of all. The
// ranks of a pipeline wait for each other, so their trials are exact, and simulate all of them, or one
// of each class (rank_classes.hpp).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "allocator/packing/arena_packing.hpp"
#include "allocator/packing/packing_memo.hpp"
#include "engine/planner/price/cost_model.hpp"
#include "engine/planner/price/tier_bytes.hpp"
#include "engine/planner/trial/rank_classes.hpp"
#include "engine/runtime/run_memory.hpp"
#include "engine/schedule/compile/step_kind.hpp"
#include "engine/schedule/simulate/simulate.hpp"

namespace sluice::planner {

// A candidate with its schedules and the memory that a run of them needs.
struct Compiled {
  schedule::StepOptions options;
  schedule::StepSchedules schedules;
  // By kind: whether the schedule has its deps. Those of steps that are only asked for their
  // need have places alone.
  std::array<bool, schedule::kStepKindCount> linked{};
  runtime::MemoryNeed need;
  TierBytes most_bytes{};  // the most that any rank needs
  // The times of one training step; empty until it is simulated.
  schedule::Simulation simulation;
  std::vector<schedule::InstructionTimes> times;
};

struct Trial {
  TierBytes need{};
  double seconds = 0;     // of one training step
  double compute_s = 0;   // about that of its compute lane; 0 in a pipeline
  bool is_exact = false;  // of one rank: its training step was simulated as it is
};

class Trials {
 public:
  // model and costs must outlive it. fixed: of the run, apart from its schedules.
  // other_ranks: the same step of one rank of each other size of shards, and in a pipeline of each
  // stage. pipeline: the step of every rank, by number; empty: there is none. classes, if not null,
  // must outlive it: `pipeline` then has the first rank of each class.
  Trials(const schedule::StepModel& model, CostModel& costs, const runtime::FixedNeed& fixed,
         std::vector<schedule::StepModel> other_ranks = {},
         std::vector<schedule::StepModel> pipeline = {}, const RankClasses* classes = nullptr)
      : model_(model),
        costs_(costs),
        fixed_(fixed),
        other_ranks_(std::move(other_ranks)),
        pipeline_(std::move(pipeline)),
        classes_(classes) {}

  // The need is up to a few percent above the exact one, since packings are coarse too. Of a small
  // step both are exact, though other steps of the run may need more.
  const Trial& coarse(const schedule::StepOptions& options);
  // The need alone, packed as an exact one is. It comes from a coarse schedule, which may state too
  // much, or from the training step itself if that is small: then no exact need is below it.
  const TierBytes& coarse_need(const schedule::StepOptions& options);
  // The most_bytes of exact(), in half of its time.
  const TierBytes& exact_need(const schedule::StepOptions& options);
  // Whether the exact need fits. Ends with the first rank that does not, and begins with the one that did
  // not fit before.
  bool exact_fits(const schedule::StepOptions& options, const TierBytes& budgets);
  // The same of the coarse need.
  bool coarse_fits(const schedule::StepOptions& options, const TierBytes& budgets);
  // The exact need is not below this, as far as ranks have been asked.
  TierBytes least_need(const schedule::StepOptions& options) const;
  // The training step alone, with its need. Other steps of the run may need more.
  Compiled place_training(const schedule::StepOptions& options) const;
  // Nothing: it does not fit. Then mostly nothing is packed.
  std::optional<Compiled> place_training(const schedule::StepOptions& options,
                                         const TierBytes& budgets) const;
  // And simulated.
  Compiled training(const schedule::StepOptions& options) const;
  // All steps of a run, with the exact need of all. None is linked. Where the training step alone does
  // not fit, the others are missing.
  Compiled place_all(const schedule::StepOptions& options, const TierBytes& budgets) const;
  // Places the other steps of a run whose training step is there, and sums up the need of all.
  // alike, if not null: all steps of a run that may differ in the ring of update pieces. Those
  // that have none are taken from it.
  void complete(Compiled& compiled, const Compiled* alike = nullptr) const;
  // No order of a simulated training step's instructions takes less.
  double least_s(const Compiled& compiled) const;
  // Links the training step if it is not, and simulates it. Of a pipeline by classes only the total
  // is set, which a trial has found already (coarse()).
  void simulate(Compiled& compiled) const;
  // Links all steps that are not, so that they can run.
  static void link(Compiled& compiled);
  // All steps, linked.
  Compiled exact(const schedule::StepOptions& options) const;
  // Whether ranks own whole tensors, and so may differ much. Coarse needs are those of the first.
  bool ranks_differ() const { return !other_ranks_.empty() && takes_whole_tensors(); }
  // The plan that takes least of all whose training step was tried exactly, if it takes less than
  // `seconds` and all its steps fit. Nothing: there is none.
  std::optional<Compiled> fastest_exact(double seconds, const TierBytes& budgets) const;
  // Trials made so far, without repeats.
  std::size_t count() const { return known_.trials.size(); }
  // And the instructions of their schedules, with those that were made for needs alone where a trial
  // has only some classes: the work that they took.
  std::uint64_t instructions() const { return instructions_; }

 private:
  // The needs of some ranks: of the model's, and then of the others.
  struct Needs {
    TierBytes most{};
    std::vector<bool> counted;
  };
  void count(Needs& needs, std::size_t rank, const schedule::StepOptions& options) const;
  std::size_t rank_count() const { return 1 + other_ranks_.size(); }
  // Answers so far, which only save time.
  struct Known {
    std::map<std::string, Trial> trials;
    std::vector<std::pair<double, schedule::StepOptions>> exact;  // the seconds of exact trials
    mutable packing::PackingMemo packings;
  };
  static void link_step(Compiled& compiled, schedule::StepKind kind);
  void simulate_alone(Compiled& compiled) const;
  Trial measure(const schedule::StepOptions& options);
  Trial measure_exactly(const schedule::StepOptions& options);
  Trial measure_pipeline(const schedule::StepOptions& options);
  schedule::Schedule priced_world(const schedule::StepOptions& options) const;
  TierBytes measure_need(const schedule::StepOptions& options) const;
  Compiled place_step(const schedule::StepOptions& options, schedule::Schedule training) const;
  TierBytes measure_exact_need(const schedule::StepModel& model,
                               const schedule::StepOptions& options) const;
  TierBytes with_other_ranks(TierBytes need, const schedule::StepOptions& options) const;
  TierBytes need_of(const schedule::Schedule& training) const;
  TierBytes need_of_all(const schedule::StepOptions& options, TierBytes need, std::int32_t few,
                        std::uint64_t pieces, packing::PackingEffort effort) const;

  bool takes_whole_tensors() const { return kernels::needs_whole_tensors(model_.optimizer); }

  const schedule::StepModel& model_;
  CostModel& costs_;
  runtime::FixedNeed fixed_;
  std::vector<schedule::StepModel> other_ranks_;
  std::vector<schedule::StepModel> pipeline_;
  const RankClasses* classes_;
  mutable std::uint64_t instructions_ = 0;
  Known known_;
  std::map<std::string, TierBytes> known_needs_;
  std::map<std::string, TierBytes> known_exact_needs_;
  std::map<std::string, Needs> needs_of_some_;  // where some rank did not fit
  std::size_t fullest_ = 0;                     // the rank that did not fit last
};

}  // namespace sluice::planner
