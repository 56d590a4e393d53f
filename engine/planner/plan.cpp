#include "engine/planner/plan.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.hpp"
#include "base/units.hpp"
#include "engine/planner/budget_step.hpp"
#include "engine/planner/candidates.hpp"
#include "engine/planner/cost_model.hpp"
#include "engine/planner/footprint.hpp"
#include "engine/planner/raise.hpp"
#include "engine/planner/step_size.hpp"
#include "engine/runtime/state_store.hpp"
#include "engine/schedule/compile/generate.hpp"

namespace sluice::planner {
namespace {

// Candidates that fit are tried in order of preference; the fastest of the first few is taken.
constexpr std::size_t kSimulatedCandidates = 4;
// How often fewer units are tried where as many as seem to fit do not.
constexpr int kRaiseTries = 4;
constexpr int kRaiseRounds = 2;
constexpr double kRefinementSlack = 1.02;
constexpr std::array<const char*, kTierCount> kBudgetKeys{"memory.device", "memory.pinned",
                                                          "memory.storage"};

void check_step_size(const schedule::StepModel& model, const schedule::StepOptions& options) {
  const std::uint64_t count = step_size(model, options);
  if (count > kMostStepInstructions) {
    throw InputError("a step of this configuration would have about " + std::to_string(count) +
                     " instructions, and at most " + std::to_string(kMostStepInstructions) +
                     " can be planned; lower train.accumulate or model.layers");
  }
}

bool fits(const TierBytes& needed, const TierBytes& budgets) {
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    if (needed[tier] > budgets[tier]) return false;
  }
  return true;
}

struct Compiled {
  schedule::StepOptions options;
  schedule::Schedule training;
  schedule::Schedule first;
  schedule::Schedule drain;
  schedule::Schedule redo;
  schedule::Schedule evaluation;
  schedule::Schedule saving;
  schedule::Schedule save;
  runtime::MemoryNeed need;
  schedule::Simulation simulation;
};

// log_bytes: of a durable run's commits.
Compiled compile_candidate(const schedule::StepModel& model, const schedule::StepOptions& options,
                           std::uint64_t log_bytes) {
  Compiled compiled;
  compiled.options = options;
  compiled.training = schedule::compile_training_step(model, options);
  compiled.evaluation = schedule::compile_evaluation(model, options);
  std::vector<const schedule::Schedule*> schedules{&compiled.training, &compiled.evaluation};
  if (options.update == schedule::UpdatePlacement::kNextForward) {
    compiled.first = schedule::compile_first_step(model, options);
    compiled.drain = schedule::compile_drain(model, options);
    schedules.insert(schedules.end(), {&compiled.first, &compiled.drain});
  }
  if (options.update == schedule::UpdatePlacement::kSpeculative) {
    compiled.redo = schedule::compile_redo(model, options);
    schedules.push_back(&compiled.redo);
  }
  if (options.durable) {
    compiled.saving = schedule::compile_saving_step(model, options);
    compiled.save = schedule::compile_save(model, options);
    schedules.insert(schedules.end(), {&compiled.saving, &compiled.save});
  }
  compiled.need = runtime::memory_need(schedules, runtime::StateStore::kWindowBytes);
  compiled.need.log_bytes = log_bytes;
  return compiled;
}

// A file of two records (offload/state_log.hpp), each of the settings and of all homes.
std::uint64_t log_bytes(const config::Config& config, const schedule::StepModel& model) {
  if (config.checkpoint.mode != config::Config::CheckpointMode::kDurable) return 0;
  std::vector<std::string> paths = config.memory.storage_paths;
  paths.push_back(config.checkpoint.dir);
  return offload::StateLog::file_bytes(
      runtime::state_record_bytes(model.units.size() * kStateKindCount, config::result_settings(config), paths));
}

std::string busiest_lane(const schedule::Simulation& simulation) {
  const auto& busy = simulation.busy_s.front();
  const auto at =
      static_cast<std::size_t>(std::max_element(busy.begin(), busy.end()) - busy.begin());
  const auto lane = static_cast<schedule::Lane>(at);
  if (lane == schedule::Lane::kStorageRead || lane == schedule::Lane::kStorageWrite) return "storage";
  return std::string(schedule::lane_name(lane));
}

std::array<TierBytes, kStateKindCount> kind_bytes(const schedule::Schedule& training) {
  std::array<TierBytes, kStateKindCount> bytes{};
  for (const schedule::Buffer& buffer : training.buffers) {
    if (buffer.persistent && buffer.role == schedule::BufferRole::kState && !buffer.log_copy &&
        buffer.twin_of == schedule::kNoId) {
      bytes[static_cast<std::size_t>(buffer.kind)][static_cast<std::size_t>(buffer.tier)] +=
          buffer.bytes;
    }
  }
  return bytes;
}

TierBytes twin_bytes(const schedule::Schedule& training) {
  TierBytes bytes{};
  for (const schedule::Buffer& buffer : training.buffers) {
    if (buffer.twin_of == schedule::kNoId) continue;
    bytes[static_cast<std::size_t>(buffer.tier)] +=
        buffer.window ? buffer.slots.size() * training.slot_bytes : schedule::place_bytes(buffer);
  }
  return bytes;
}

// Room for `least` too. A plan that spills may take less of a tier than the most frugal candidate,
// which it would be refused without if that were the budget.
runtime::MemoryNeed at_least(runtime::MemoryNeed need, const runtime::MemoryNeed& least) {
  const std::uint64_t device = need.peak_bytes().front();
  const std::uint64_t wanted = least.peak_bytes().front();
  if (device < wanted) {
    need.device_arena_bytes =
        need.shares_device ? wanted
                           : round_up(need.device_arena_bytes, kPageBytes) + (wanted - device);
  }
  need.pinned_bytes = std::max(need.pinned_bytes, least.pinned_bytes);
  need.storage_bytes = std::max(need.storage_bytes, least.storage_bytes);
  return need;
}

// Takes the fastest of the first few candidates that fit, then looks whether another order, other
// places of activations or another place of the update makes it faster, and fills the faster tiers
// (raise.hpp). What fits is settled before: none of it is needed to.
class Search {
 public:
  Search(const schedule::StepModel& model, const TierBytes& budgets, CostModel& costs,
         std::uint64_t log_bytes)
      : model_(model), budgets_(budgets), costs_(costs), log_bytes_(log_bytes) {}

  // As many of those that share the device as of those that do not. What the most frugal one needs,
  // if that was looked at.
  std::optional<TierBytes> consider(const CandidateGroup& group) {
    if (shares_device(group) != std::exchange(sharing_, shares_device(group))) simulated_ = 0;
    if (simulated_ == kSimulatedCandidates) return std::nullopt;
    if (!fits(home_bytes(model_, group.back()), budgets_)) return std::nullopt;
    Compiled frugal = compile_candidate(model_, group.back(), log_bytes_);
    const TierBytes needed = frugal.need.peak_bytes();
    if (!fits(needed, budgets_)) return needed;
    if (!found()) least_ = frugal.need;
    for (std::size_t i = 0; i + 1 < group.size() && simulated_ < kSimulatedCandidates; ++i) {
      Compiled compiled = compile_candidate(model_, group[i], log_bytes_);
      if (fits(compiled.need.peak_bytes(), budgets_)) try_out(std::move(compiled), group);
    }
    if (simulated_ < kSimulatedCandidates) try_out(std::move(frugal), group);
    return needed;
  }

  // groups: all candidates.
  void improve(const config::Config& config, const std::vector<CandidateGroup>& groups) {
    if (!found()) return;
    for (const CandidateGroup& group : order_variants(config, best_group_)) consider_any(group);
    const schedule::StepOptions plain = best_->options;
    move_update(config);
    const schedule::StepOptions moved = best_->options;
    spill(config, moved);
    if (moved.update != plain.update) spill(config, plain);
    if (best_->options.recompute) {
      spill_elsewhere(groups);
      // All of it, so far.
      if (!best_->options.recompute) spill(config, best_->options);
    }
    const auto places = [](const schedule::StepOptions& options) {
      return std::pair(options.placement.activation, options.placement.saved);
    };
    if (places(best_->options) != places(moved)) move_update(config);
  }

  // Fills the faster tiers with what lies on slower ones, as long as no step gets slower by it.
  void fill(const config::Config& config) {
    if (!found()) return;
    // Again, since what goes to the device leaves room in pinned memory.
    bool raised_any = true;
    for (int round = 0; round < kRaiseRounds && raised_any; ++round) {
      raised_any = false;
      for (const Raise& raise : possible_raises(config)) raised_any |= raise_units(raise);
    }
  }

  // Other pieces for an update that storage feeds, unless they make the copies to and from the
  // device too short. What they gain is more than the simulation knows.
  void refine() {
    if (!found()) return;
    for (const schedule::StepOptions& options : update_piece_variants(model_, best_->options)) {
      if (step_size(model_, options) > kMostStepInstructions) continue;
      Compiled compiled = compile_candidate(model_, options, log_bytes_);
      if (!fits(compiled.need.peak_bytes(), budgets_)) continue;
      simulate_one(compiled);
      if (compiled.simulation.total_s > best_->simulation.total_s * kRefinementSlack) continue;
      best_ = std::move(compiled);
      return;
    }
  }

  bool found() const { return best_.has_value(); }
  Compiled take() {
    costs_.apply(best_->redo);
    if (spills_activations(best_->options)) best_->need = at_least(best_->need, least_);
    return std::move(*best_);
  }

 private:
  void move_update(const config::Config& config) {
    for (const schedule::StepOptions& options : update_variants(config, best_->options)) {
      consider_any({options});
    }
  }

  void spill(const config::Config& config, const schedule::StepOptions& from) {
    for (const schedule::StepOptions& variant : spilling_variants(config, from)) spill_least(config, variant);
  }

  // To pinned memory where it has room for all that may go there, else to storage; both in either
  // order of what leaves first.
  void spill_least(const config::Config& config, const schedule::StepOptions& options) {
    for (const Tier tier : {Tier::kPinned, Tier::kStorage}) {
      bool any = false;
      for (const auto first : {SpillChoice::First::kUnits, SpillChoice::First::kParts}) {
        any |= consider_least(SpillChoice(config, model_, options, first, tier));
      }
      if (any) return;
    }
  }

  // The fewest that fit, none where all may stay. False: not even all do.
  bool consider_least(const SpillChoice& choice) {
    const auto fitting = [&](std::size_t count) -> std::optional<Compiled> {
      const schedule::StepOptions options = choice.with(count);
      if (step_size(model_, options) > kMostStepInstructions) return std::nullopt;
      Compiled compiled = compile_candidate(model_, options, log_bytes_);
      if (!fits(compiled.need.peak_bytes(), budgets_)) return std::nullopt;
      return compiled;
    };
    if (choice.count() == 0) return false;
    if (std::optional<Compiled> kept = fitting(0)) {
      try_out(std::move(*kept), {choice.with(0)});
      return true;
    }
    std::optional<Compiled> found = fitting(choice.count());
    if (!found) return false;
    std::size_t too_few = 0;
    std::size_t enough = choice.count();
    while (enough - too_few > 1) {
      const std::size_t count = too_few + (enough - too_few) / 2;
      if (std::optional<Compiled> compiled = fitting(count)) {
        found = std::move(compiled);
        enough = count;
      } else {
        too_few = count;
      }
    }
    try_out(std::move(*found), {choice.with(enough)});
    return true;
  }

  // As many units as the room that is left takes. What else a plan needs may grow with them, or
  // shrink, so fewer are tried where these do not fit. False: nothing is raised.
  bool raise_units(const Raise& raise) {
    const std::vector<std::size_t> units = raisable_units(best_->options.placement, raise);
    const auto tier = static_cast<std::size_t>(raise.to);
    const std::uint64_t room = budgets_[tier] - best_->need.peak_bytes()[tier];
    std::size_t count = units_that_fit(model_, best_->options, raise, units, room);
    for (int tries = 0; count > 0 && tries < kRaiseTries; ++tries, count = count * 3 / 4) {
      schedule::StepOptions options = best_->options;
      options.placement = raised(options.placement, raise, units, count);
      Compiled compiled = compile_candidate(model_, options, log_bytes_);
      if (!fits(compiled.need.peak_bytes(), budgets_)) continue;
      simulate_one(compiled);
      if (compiled.simulation.total_s > best_->simulation.total_s) return false;
      best_ = std::move(compiled);
      return true;
    }
    return false;
  }

  void simulate_one(Compiled& compiled) {
    costs_.apply(compiled.training);
    compiled.simulation = schedule::simulate(compiled.training, costs_.simulation_model());
  }

  // Nothing recomputed, where weights that leave the device make room for that: of the first
  // placement that does.
  void spill_elsewhere(const std::vector<CandidateGroup>& groups) {
    for (const CandidateGroup& group : groups) {
      CandidateGroup spilling;
      for (const schedule::StepOptions& options : group) {
        if (options.recompute || !spills_activations(options)) continue;
        spilling.push_back(options);
        spilling.back().update = best_->options.update;
      }
      if (spilling.empty() || !fits(home_bytes(model_, spilling.back()), budgets_)) continue;
      const Compiled frugal = compile_candidate(model_, spilling.back(), log_bytes_);
      if (fits(frugal.need.peak_bytes(), budgets_)) return consider_any(spilling);
    }
  }

  // The first that fits.
  void consider_any(const CandidateGroup& group) {
    for (const schedule::StepOptions& options : group) {
      Compiled compiled = compile_candidate(model_, options, log_bytes_);
      if (!fits(compiled.need.peak_bytes(), budgets_)) continue;
      return try_out(std::move(compiled), group);
    }
  }

  void try_out(Compiled compiled, const CandidateGroup& group) {
    simulate_one(compiled);
    ++simulated_;
    if (!best_ || compiled.simulation.total_s < best_->simulation.total_s) {
      best_ = std::move(compiled);
      best_group_ = group;
    }
  }

  const schedule::StepModel& model_;
  const TierBytes& budgets_;
  CostModel& costs_;
  std::uint64_t log_bytes_;
  std::optional<Compiled> best_;
  CandidateGroup best_group_;  // where it is from
  runtime::MemoryNeed least_;           // of the first group that fits, its most frugal candidate's
  std::size_t simulated_ = 0;
  bool sharing_ = false;  // the groups now considered
};

// What every placement needs at least, for a refusal.
class Refuser {
 public:
  explicit Refuser(const TierBytes& budgets) : budgets_(budgets) {}

  void consider(const TierBytes& needed) { needs_.push_back(needed); }

  Refusal refusal() const {
    Refusal refusal;
    refusal.available_bytes = budgets_;
    refusal.needed_bytes = nearest();
    for (std::size_t tier = 0; tier < kTierCount; ++tier) {
      if (const auto least = least_budget(tier)) {
        refusal.suggestions.push_back({{kBudgetKeys[tier], *least}});
      }
    }
    if (refusal.suggestions.empty()) {
      Suggestion joint;
      for (std::size_t tier = 0; tier < kTierCount; ++tier) {
        if (refusal.needed_bytes[tier] > budgets_[tier]) {
          joint.emplace_back(kBudgetKeys[tier],
                             suggested_budget(refusal.needed_bytes[tier]));
        }
      }
      refusal.suggestions.push_back(std::move(joint));
    }
    return refusal;
  }

 private:
  // The least value of one budget with which some candidate fits, the others as they are.
  std::optional<std::uint64_t> least_budget(std::size_t tier) const {
    std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
    for (const TierBytes& needed : needs_) {
      TierBytes others = budgets_;
      others[tier] = std::numeric_limits<std::uint64_t>::max();
      if (fits(needed, others)) least = std::min(least, needed[tier]);
    }
    if (least == std::numeric_limits<std::uint64_t>::max()) return std::nullopt;
    return suggested_budget(least);
  }

  // The candidate that lacks the fewest bytes in all, counted as they would be suggested: where two
  // differ by less than a step, the larger one's suggestion would not be the smallest.
  TierBytes nearest() const {
    SLUICE_CHECK(!needs_.empty());
    const auto shortfall = [&](const TierBytes& needed) {
      std::uint64_t bytes = 0;
      for (std::size_t tier = 0; tier < kTierCount; ++tier) {
        if (needed[tier] <= budgets_[tier]) continue;
        bytes += suggested_budget(needed[tier]) - budgets_[tier];
      }
      return bytes;
    };
    return *std::min_element(
        needs_.begin(), needs_.end(),
        [&](const TierBytes& a, const TierBytes& b) { return shortfall(a) < shortfall(b); });
  }

  TierBytes budgets_;
  std::vector<TierBytes> needs_;
};

Plan finish_plan(Compiled compiled, const schedule::StepModel& step, const model::Model& model,
                 const HardwareProfile& hardware, const schedule::SimulationModel& machine) {
  Plan plan;
  plan.options = std::move(compiled.options);
  plan.training = std::move(compiled.training);
  plan.first = std::move(compiled.first);
  plan.drain = std::move(compiled.drain);
  plan.redo = std::move(compiled.redo);
  if (plan.speculates()) plan.redo_s = schedule::simulate(plan.redo, machine).total_s;
  plan.redo_bytes = schedule::link_bytes(plan.redo);
  plan.twin_bytes = twin_bytes(plan.training);
  plan.evaluation = std::move(compiled.evaluation);
  plan.saving = std::move(compiled.saving);
  plan.save = std::move(compiled.save);
  plan.need = compiled.need;
  plan.peak_bytes = compiled.need.peak_bytes();
  plan.step_bytes = schedule::link_bytes(plan.training);
  plan.activation_bytes = schedule::activation_link_bytes(plan.training);
  plan.saved_bytes = saved_bytes_by_part(step, plan.options, plan.training);
  plan.evaluation_bytes = schedule::link_bytes(plan.evaluation);
  plan.saving_bytes = schedule::link_bytes(plan.saving);
  plan.saving_bytes += schedule::link_bytes(plan.drain);  // before it
  plan.bound_by = busiest_lane(compiled.simulation);
  plan.simulation = std::move(compiled.simulation);
  plan.profile = hardware.cpu_name;
  plan.parameters = model.parameter_count();
  plan.kind_bytes = kind_bytes(plan.training);
  for (std::size_t kind = 0; kind < kStateKindCount; ++kind) {
    plan.state_bytes += plan.state_bytes_of(static_cast<StateKind>(kind));
  }
  return plan;
}

}  // namespace

std::uint64_t Plan::state_bytes_of(StateKind kind) const {
  const TierBytes& by_tier = kind_bytes[static_cast<std::size_t>(kind)];
  return std::accumulate(by_tier.begin(), by_tier.end(), std::uint64_t{0});
}

namespace {

// A budget as it was given; free space, which is an odd number of bytes, to three digits.
std::string available_text(std::uint64_t bytes) {
  return bytes % kMiB == 0 ? format_bytes_exact(bytes) : format_bytes(bytes);
}

}  // namespace

std::string Refusal::sentence() const {
  std::string text = "does not fit:";
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    if (needed_bytes[tier] <= available_bytes[tier]) continue;
    text += " " + std::string(kBudgetKeys[tier]) + " needs " +
            format_bytes_exact(suggested_budget(needed_bytes[tier])) + " and has " +
            available_text(available_bytes[tier]) + ";";
  }
  if (suggestions.empty()) {
    return text +
           " no budget that this machine has room for would do; a smaller model or batch, or "
           "memory.storage_paths with more room, might";
  }
  text += " smallest change that fits:";
  for (std::size_t i = 0; i < suggestions.size(); ++i) {
    if (i > 0) text += " or";
    for (const auto& [key, bytes] : suggestions[i]) {
      text += " --set " + key + "=" + format_bytes_exact(bytes);
    }
  }
  return text;
}

model::ModelShape model_shape(const config::Config& config) {
  model::ModelShape shape;
  shape.family =
      config.model.family == config::Config::Family::kLlama ? model::ModelFamily::kLlama : model::ModelFamily::kGpt2;
  shape.layers = config.model.layers;
  shape.hidden = config.model.hidden;
  shape.heads = config.model.heads;
  shape.kv_heads = config.model.kv_heads;
  shape.ffn = config.model.ffn;
  shape.vocab = config.model.vocab;
  shape.max_seq = config.model.max_seq;
  shape.tie_embeddings = config.model.tie_embeddings;
  return shape;
}

model::BatchShape batch_shape(const config::Config& config) {
  const auto dtype = [&] {
    switch (config.train.precision) {
      case config::Config::Precision::kFP32:
        return DType::kF32;
      case config::Config::Precision::kFP16:
        return DType::kF16;
      case config::Config::Precision::kBF16:
        break;
    }
    return DType::kBF16;
  };
  return {config.train.micro_batch, config.train.seq, dtype()};
}

kernels::OptimizerOptions optimizer_options(const config::Config& config) {
  kernels::OptimizerOptions options;
  const auto& optimizer = config.optimizer;
  options.rule = optimizer.name;
  options.weight = batch_shape(config).dtype;
  options.split_master = optimizer.states == config::Config::States::kSplit;
  constexpr std::array<DType, 3> kMoments{DType::kF32, DType::kBF16, DType::kBlock8};
  options.moments = kMoments.at(static_cast<std::size_t>(optimizer.moments));
  options.beta1 = optimizer.beta1;
  options.beta2 = optimizer.beta2;
  options.epsilon = optimizer.eps;
  options.momentum = optimizer.momentum;
  options.nesterov = optimizer.nesterov;
  options.beta2_decay = optimizer.beta2_decay;
  options.clip_threshold = optimizer.clip_threshold;
  options.seed = config.train.seed;
  return options;
}

model::ParameterTable parameter_table(const config::Config& config, const model::Model& model) {
  return model::ParameterTable(model, optimizer_options(config), config.optimizer.weight_decay,
                        config.optimizer.groups);
}

std::variant<Plan, Refusal> make_plan(const config::Config& config, const model::Model& model,
                                      const kernels::Kernels& kernels, const HardwareProfile& hardware,
                                      const kernels::Kernels* host_kernels) {
  const model::BatchShape batch = batch_shape(config);
  const schedule::StepModel step_model =
      make_step_model(model, batch, parameter_table(config, model), kernels,
                      host_kernels == nullptr ? kernels : *host_kernels);
  const TierBytes budgets{config.memory.device_bytes, config.memory.pinned_bytes,
                          config.memory.storage_bytes};
  CostModel costs(config, model, batch, hardware);
  std::vector<CandidateGroup> groups = plan_candidates(config, step_model);
  if (groups.empty()) {
    throw InputError(
        "memory.place.optimizer = \"device\" needs memory.place.weight and "
        "memory.place.gradient = \"device\" too");
  }

  check_step_size(step_model, groups.front().back());
  std::erase_if(groups, [&](const CandidateGroup& group) {
    return step_size(step_model, group.back()) > kMostStepInstructions;
  });
  const std::uint64_t of_commits = log_bytes(config, step_model);
  Search search(step_model, budgets, costs, of_commits);
  std::vector<std::optional<TierBytes>> needs;
  for (const CandidateGroup& group : groups) needs.push_back(search.consider(group));
  search.improve(config, groups);
  search.fill(config);
  search.refine();
  if (search.found()) {
    return finish_plan(search.take(), step_model, model, hardware, costs.simulation_model());
  }

  Refuser refuser(budgets);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    refuser.consider(
        needs[i] ? *needs[i]
                 : compile_candidate(step_model, groups[i].back(), of_commits).need.peak_bytes());
  }
  return refuser.refusal();
}

}  // namespace sluice::planner
