// Plan or refuse: the cheapest way to run a configuration inside its budgets, known before anything
// is allocated; or what is missing, and the smallest change that would fit.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/model/parameter_table.hpp"
#include "engine/planner/hardware_profile.hpp"
#include "engine/planner/spill_choice.hpp"
#include "engine/runtime/run_memory.hpp"
#include "engine/schedule/compile/step_model.hpp"
#include "engine/schedule/schedule.hpp"
#include "engine/schedule/simulate/simulate.hpp"

namespace sluice::planner {

using TierBytes = std::array<std::uint64_t, kTierCount>;

struct Plan {
  schedule::StepOptions options;
  schedule::Schedule training;  // a steady step
  // Where updates are made in the next forward pass: a step with none pending before it, and the
  // update that is pending behind the last. Otherwise without instructions.
  schedule::Schedule first;
  schedule::Schedule drain;
  schedule::Schedule redo;  // where updates are speculative: the update made once more; else empty
  schedule::Schedule evaluation;
  schedule::Schedule saving;  // of a durable run: the step that commits too, and the commit alone; else empty
  schedule::Schedule save;

  std::uint64_t state_bytes_of(StateKind kind) const;
  bool carries_updates() const { return options.update == schedule::UpdatePlacement::kNextForward; }
  bool speculates() const { return options.update == schedule::UpdatePlacement::kSpeculative; }
  runtime::MemoryNeed need;
  TierBytes peak_bytes{};      // what the ledger will be charged
  schedule::LinkBytes step_bytes;        // moved by one training step
  schedule::LinkBytes activation_bytes;  // of these, what spills and fetches of activations move
  SavedBytes saved_bytes;      // of one training step, by part and place
  schedule::LinkBytes evaluation_bytes;
  schedule::LinkBytes saving_bytes;  // moved by one step that commits
  schedule::LinkBytes redo_bytes;    // moved by a redo, beside its step's
  double redo_s = 0;       // that a redo takes, behind its step
  TierBytes shadow_bytes{};  // of peak_bytes: what the second homes of state take
  schedule::Simulation simulation;   // of one training step; where it speculates, of one that stands
  std::string
      bound_by;         // the lane that is busiest: "compute", "storage", "h2d", "d2h", "optimizer"
  std::string profile;  // the measured machine's name, "unmeasured" for the default profile
  std::uint64_t parameters = 0;
  std::uint64_t state_bytes = 0;  // weights, gradients, master, moments, wherever they lie
  std::array<TierBytes, kStateKindCount> kind_bytes{};  // the same by kind and tier
};

// One change that fits: keys and their least values.
using Suggestion = std::vector<std::pair<std::string, std::uint64_t>>;

struct Refusal {
  TierBytes needed_bytes{};             // of the candidate that comes nearest
  TierBytes available_bytes{};          // the budgets
  std::vector<Suggestion> suggestions;  // empty: none that the machine has room for
  std::string sentence() const;
};

// Shapes as the configuration gives them.
model::ModelShape model_shape(const config::Config& config);
model::BatchShape batch_shape(const config::Config& config);
kernels::OptimizerOptions optimizer_options(const config::Config& config);
// Throws InputError naming a parameter group that matches no tensor.
model::ParameterTable parameter_table(const config::Config& config, const model::Model& model);

// Deterministic in its arguments. kernels: the device's; host_kernels: the optimizer lane's, where
// they are others. Throws InputError where no schedule exists for the placement.
std::variant<Plan, Refusal> make_plan(const config::Config& config, const model::Model& model,
                                      const kernels::Kernels& kernels, const HardwareProfile& hardware,
                                      const kernels::Kernels* host_kernels = nullptr);

}  // namespace sluice::planner
