// Plan or refuse: the fastest known way to run a configuration inside its budgets, found before
// anything is allocated; or the bytes that are missing and the smallest change that would fit.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/units.hpp"
#include "engine/config/config.hpp"
#include "engine/model/model.hpp"
#include "engine/model/parameter_table.hpp"
#include "engine/planner/choice/spill_choice.hpp"
#include "engine/planner/critical_path.hpp"
#include "engine/planner/price/hardware_profile.hpp"
#include "engine/planner/price/rank_traffic.hpp"
#include "engine/planner/price/tier_bytes.hpp"
#include "engine/planner/search/tried.hpp"
#include "engine/planner/trial/refusal.hpp"
#include "engine/planner/verb_needs.hpp"
#include "engine/runtime/run_memory.hpp"
#include "engine/schedule/compile/step_kind.hpp"
#include "engine/schedule/simulate/simulate.hpp"

namespace sluice::planner {

struct Plan {
  schedule::StepOptions options;
  // Whose step it is: among data-parallel ranks, and in a pipeline.
  schedule::RankView view;
  schedule::StageView pipeline;
  // The mesh dimension of the ranks that compute each micro-batch together.
  const char* inner_name() const {
    if (view.tensor.contexts == 1) return "tensor";
    return view.tensor.parts() == 1 ? "context" : "inner";
  }
  std::int32_t world_ranks() const { return view.ranks * pipeline.ranks() * view.tensor.ranks; }
  std::int32_t world_rank() const { return schedule::world_rank(view, pipeline.rank, view.rank); }
  bool is_alone() const { return world_ranks() == 1; }
  // One for each rank of a plan for several, or for each class (WorldScope); plan_rank: this one's.
  std::vector<RankFigures> ranks;
  bool by_classes = false;
  // By number in `ranks`: the one that ends last in the simulated step, of equal ones that with the
  // longest passes; and the one that needs most of the device, then of pinned memory and storage.
  std::size_t slowest = 0, fullest = 0;
  // Their plans; null: it is this one.
  std::shared_ptr<const Plan> slowest_plan, fullest_plan;
  const Plan& of_slowest() const { return slowest_plan ? *slowest_plan : *this; }
  const Plan& of_fullest() const { return fullest_plan ? *fullest_plan : *this; }
  // Whether `ranks` stand for the whole world.
  bool knows_all_ranks() const { return ranks.size() > 1 || by_classes; }
  // Of the order of passes alone, over all updates (WorldShares).
  double pipeline_span_s = 0, pipeline_bubble_s = 0;
  schedule::StepSchedules schedules;
  const schedule::Schedule& training() const { return schedules[schedule::StepKind::kTraining]; }

  std::uint64_t state_bytes_of(StateKind kind) const;
  bool carries_updates() const { return schedule::carries_updates(options); }
  // Of one training schedule, each a step of the run.
  std::int32_t updates() const { return pipeline.order.updates; }
  // A step's share of the seconds, or of the bytes rounded up, of the training schedule.
  double step_share(double seconds) const { return seconds / updates(); }
  std::uint64_t step_share(std::uint64_t bytes) const {
    return ceil_div(bytes, static_cast<std::uint64_t>(updates()));
  }
  schedule::LinkBytes step_share(const schedule::LinkBytes& bytes) const {
    return {step_share(bytes.upload), step_share(bytes.download), step_share(bytes.storage_read),
            step_share(bytes.storage_write)};
  }
  double step_s() const { return step_share(simulation.total_s); }
  bool speculates() const { return options.update == schedule::UpdatePlacement::kSpeculative; }
  runtime::MemoryNeed need;
  TierBytes peak_bytes{};  // what the ledger will be charged
  VerbPeaks verb_peaks{};  // what each phase has in use of it
  // Sizes of the files that one checkpoint and the export write, apart from the tiers.
  std::uint64_t checkpoint_file_bytes = 0;  // 0 in a durable run
  std::uint64_t export_file_bytes = 0;
  schedule::LinkBytes step_bytes;        // moved by the training schedule, with all its updates
  schedule::LinkBytes activation_bytes;  // the part of it that spills and fetches activations
  SavedBytes saved_bytes;                // of the same schedule, by part and place
  schedule::LinkBytes evaluation_bytes;
  schedule::LinkBytes saving_bytes;  // moved by one step that commits
  schedule::LinkBytes redo_bytes;    // moved by a redo, in addition to its step's
  double redo_s = 0;                 // duration of a redo, in addition to its step's
  TierBytes shadow_bytes{};          // the part of peak_bytes that shadow copies of state take
  // Of the training schedule; with speculative updates, of one without a redo.
  schedule::Simulation simulation;
  double bound_s = 0;          // no plan of this configuration takes less (relaxation.hpp)
  std::vector<Tried> tried;    // by the search, with the shapes that it passed over
  CriticalPath critical_path;  // of the same schedule; with several ranks from rank to rank
  std::string bound_by;  // the resource with the most of it: "compute", "storage", "h2d", "d2h", …
  std::string profile;   // the measured machine's name, "unmeasured" for the default profile
  std::uint64_t parameters = 0;
  std::uint64_t state_bytes = 0;  // weights, gradients, master and moments in all tiers
  std::array<TierBytes, kStateKindCount> kind_bytes{};  // the same by kind and tier
  TierBytes activation_peak_bytes{};  // the most that activations take at once, by tier
  schedule::RecomputeSummary recompute;
};

// The proof of a plan for several ranks.
enum class WorldScope : std::uint8_t {
  // The lists of all ranks are compiled, merged and proved: a run may follow.
  kAllRanks,
  // A plan on paper, of any number of ranks: one list for each class of ranks that are alike
  // (rank_classes.hpp). Plan::ranks then has one entry for each class.
  kClasses,
};

// Precondition: budgets are numbers, not "auto" (default_budgets.hpp).
// Deterministic in its arguments. kernels: the device's. host_kernels: the optimizer lane's, if
// they differ. Every schedule of the plan has passed validate().
//
// With several ranks (config.parallel.data and pipeline) the plan is that of rank 0. Of the ranks of its
// stage it has the largest shards. Its options fit the budgets of every rank, and the merged
// schedules of all ranks have passed validate(). With a pipeline the simulation and the critical path
// are those of all ranks.
// Throws InputError if no schedule exists for the placement or the ranks cannot divide the step,
// InternalError if a schedule breaks a rule.
std::variant<Plan, Refusal> make_plan(const config::Config& config, const model::Model& model,
                                      const kernels::Kernels& kernels,
                                      const HardwareProfile& hardware,
                                      const kernels::Kernels* host_kernels = nullptr,
                                      WorldScope scope = WorldScope::kAllRanks);

// No plan of this configuration takes less time for a step; 0: nothing is known. Runs for
// milliseconds.
double least_step_s(const config::Config& config, const model::Model& model,
                    const kernels::Kernels& kernels, const HardwareProfile& hardware,
                    const kernels::Kernels* host_kernels = nullptr);

// The plan of one rank of a world with the step options that rank 0 chose. No bound, and no search.
// rank: of the world. Its schedules are a part of the world's, which make_plan() has
// proved on rank 0. Throws InputError if the options are not of this configuration.
Plan plan_rank(const config::Config& config, const model::Model& model,
               const kernels::Kernels& kernels, const HardwareProfile& hardware,
               const schedule::StepOptions& options, std::int32_t rank,
               const kernels::Kernels* host_kernels = nullptr);

// Throws InternalError, which asks for a report, unless validate() accepts every schedule within
// `budgets`.
void check_schedules(const schedule::StepSchedules& schedules, const schedule::StepOptions& options,
                     const TierBytes& budgets);

}  // namespace sluice::planner
