// A greedy search. A group of candidates is one placement, from roomy to frugal; it fits exactly
// when its last, most frugal candidate fits, so that one is compiled first and the others only
// then. Simulating is the costly part: the first kSimulatedCandidates that fit decide the
// placement.
//
// The number of activations to spill and of units to promote are found by counting. For spills a
// binary search finds the fewest items that fit. For promotions the room that is left gives a first
// count; other needs of a plan may grow with it, so smaller counts follow where it does not fit.
#include "engine/planner/search.hpp"

#include <algorithm>
#include <utility>

#include "base/units.hpp"
#include "engine/planner/step_size.hpp"
#include "engine/runtime/state_store.hpp"
#include "engine/schedule/compile/generate.hpp"

namespace sluice::planner {
namespace {

// The fastest of this many candidates is taken.
constexpr std::size_t kSimulatedCandidates = 4;
// Promotions: counts tried for each, and passes over all of them.
constexpr int kPromotionTries = 4;
constexpr int kPromotionRounds = 2;
// refine() accepts a simulated step that is this much longer.
constexpr double kRefinementSlack = 1.02;

// The need, but at least `least` in every tier. A plan that spills may take less of a tier than the
// most frugal candidate. With a budget between the two the configuration would be refused, so the
// plan states the larger need.
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

}  // namespace

Compiled compile_candidate(const schedule::StepModel& model, const schedule::StepOptions& options,
                           std::uint64_t log_bytes) {
  Compiled compiled;
  compiled.options = options;
  compiled.schedules = schedule::compile_all(model, options);
  compiled.need =
      runtime::memory_need(compiled.schedules.of(options), runtime::StateStore::kWindowBytes);
  compiled.need.log_bytes = log_bytes;
  return compiled;
}

std::optional<TierBytes> Search::consider(const CandidateGroup& group) {
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

void Search::improve(const config::Config& config, const std::vector<CandidateGroup>& groups) {
  if (!found()) return;
  for (const CandidateGroup& group : order_variants(config, model_, best_group_))
    consider_any(group);
  const schedule::StepOptions plain = best_->options;
  move_update(config);
  const schedule::StepOptions moved = best_->options;
  spill(config, moved);
  if (moved.update != plain.update) spill(config, plain);
  if (best_->options.recompute.any()) {
    spill_elsewhere(groups);
    // That plan spills all activations; fewer may do.
    if (!best_->options.recompute.any()) spill(config, best_->options);
  }
  const auto places = [](const schedule::StepOptions& options) {
    return std::pair(options.placement.activation, options.placement.saved);
  };
  if (places(best_->options) != places(moved)) move_update(config);
}

void Search::fill(const config::Config& config) {
  if (!found()) return;
  // A second pass, since a promotion to the device leaves room in pinned memory.
  bool promoted_any = true;
  for (int round = 0; round < kPromotionRounds && promoted_any; ++round) {
    promoted_any = false;
    for (const Promotion& promotion : possible_promotions(config)) {
      promoted_any |= promote_units(promotion);
    }
  }
}

void Search::refine() {
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

Compiled Search::take() {
  costs_.apply(best_->schedules[schedule::StepKind::kRedo]);
  if (spills_activations(best_->options)) best_->need = at_least(best_->need, least_);
  return std::move(*best_);
}

void Search::move_update(const config::Config& config) {
  for (const schedule::StepOptions& options : update_variants(config, best_->options)) {
    consider_any({options});
  }
}

void Search::spill(const config::Config& config, const schedule::StepOptions& from) {
  for (const schedule::StepOptions& variant : spilling_variants(config, from)) {
    spill_least(config, variant);
  }
}

// Spills to pinned memory if it has room for all that may go there, else to storage. Both orders of
// leaving the device are tried.
void Search::spill_least(const config::Config& config, const schedule::StepOptions& options) {
  for (const Tier tier : {Tier::kPinned, Tier::kStorage}) {
    bool any = false;
    for (const auto first : {SpillChoice::First::kUnits, SpillChoice::First::kParts}) {
      any |= consider_least(SpillChoice(config, model_, options, first, tier));
    }
    if (any) return;
  }
}

// Tries the choice with the fewest spilled items that fit. Returns false if not even all do.
bool Search::consider_least(const SpillChoice& choice) {
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

// Tries not to recompute at all, on the first placement that makes room for that by moving weights
// off the device.
void Search::spill_elsewhere(const std::vector<CandidateGroup>& groups) {
  for (const CandidateGroup& group : groups) {
    CandidateGroup spilling;
    for (const schedule::StepOptions& options : group) {
      if (options.recompute.any() || !spills_activations(options)) continue;
      spilling.push_back(options);
      spilling.back().update = best_->options.update;
    }
    if (spilling.empty() || !fits(home_bytes(model_, spilling.back()), budgets_)) continue;
    const Compiled frugal = compile_candidate(model_, spilling.back(), log_bytes_);
    if (fits(frugal.need.peak_bytes(), budgets_)) return consider_any(spilling);
  }
}

// Promotes as many units as the room that is left takes. Other needs of a plan may grow or shrink
// with them, so fewer units are tried where these do not fit. Returns whether the plan changed.
bool Search::promote_units(const Promotion& promotion) {
  const std::vector<std::size_t> units = promotable_units(best_->options.placement, promotion);
  const auto tier = static_cast<std::size_t>(promotion.to);
  const std::uint64_t room = budgets_[tier] - best_->need.peak_bytes()[tier];
  std::size_t count = units_that_fit(model_, best_->options, promotion, units, room);
  for (int tries = 0; count > 0 && tries < kPromotionTries; ++tries, count = count * 3 / 4) {
    schedule::StepOptions options = best_->options;
    options.placement = promoted(options.placement, promotion, units, count);
    Compiled compiled = compile_candidate(model_, options, log_bytes_);
    if (!fits(compiled.need.peak_bytes(), budgets_)) continue;
    simulate_one(compiled);
    if (compiled.simulation.total_s > best_->simulation.total_s) return false;
    best_ = std::move(compiled);
    return true;
  }
  return false;
}

// Tries the first candidate that fits.
void Search::consider_any(const CandidateGroup& group) {
  for (const schedule::StepOptions& options : group) {
    Compiled compiled = compile_candidate(model_, options, log_bytes_);
    if (!fits(compiled.need.peak_bytes(), budgets_)) continue;
    return try_out(std::move(compiled), group);
  }
}

void Search::try_out(Compiled compiled, const CandidateGroup& group) {
  simulate_one(compiled);
  ++simulated_;
  if (!best_ || compiled.simulation.total_s < best_->simulation.total_s) {
    best_ = std::move(compiled);
    best_group_ = group;
  }
}

void Search::simulate_one(Compiled& compiled) {
  schedule::Schedule& training = compiled.schedules[schedule::StepKind::kTraining];
  costs_.apply(training);
  compiled.simulation = schedule::simulate(training, costs_.simulation_model());
}

}  // namespace sluice::planner
