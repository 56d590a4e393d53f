// Trials are the costly part, so nearly all of them are coarse (trials.hpp), and a linear program
// of microseconds decides which are worth one.
//
// The program knows nothing of windows, staging and workspace. So a shape is tried in rounds: its
// places are compiled, the bytes that the schedule takes beyond them become part of the program,
// and its next solution leaves room for them. A few rounds settle where the last units go.
#include "engine/planner/search.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.hpp"
#include "base/units.hpp"
#include "engine/planner/plan_steps.hpp"
#include "engine/planner/recompute_choice.hpp"
#include "engine/planner/settle_update.hpp"
#include "engine/planner/step_size.hpp"

namespace sluice::planner {
namespace {

constexpr int kRounds = 5;             // for one shape
constexpr std::size_t kFinalists = 3;  // compiled exactly
// From this many instructions on, one finalist takes about a second.
constexpr std::uint64_t kLargeStep = 500'000;
constexpr std::size_t kMostChanges = 48;  // trials of single changes to the best plan
constexpr int kPromotionTries = 4;
constexpr int kDepth = 3;                  // kinds of state with one tier each
constexpr double kFaster = 0.999;          // a change must be faster by this much to be taken
constexpr double kRefinementSlack = 1.02;  // refine() accepts a step this much longer

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

TierBytes beyond(const TierBytes& need, const TierBytes& accounted) {
  TierBytes extra{};
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    extra[tier] = need[tier] - std::min(need[tier], accounted[tier]);
  }
  return extra;
}

using Place = config::Config::Place;
using Places = config::Config::Places;

constexpr std::array<std::pair<Place Places::*, const char*>, 3> kKinds{{
    {&Places::weight, "weights"},
    {&Places::gradient, "gradients"},
    {&Places::optimizer, "optimizer state"},
}};

std::string place_text(const char* name, Place place) {
  constexpr std::array<const char*, 4> kNames{"anywhere", "on the device", "in pinned memory",
                                              "on storage"};
  return std::string(", ") + name + " " + kNames[static_cast<std::size_t>(place)];
}

}  // namespace

Search::Search(const config::Config& config, const schedule::StepModel& model,
               const TierBytes& budgets, CostModel& costs, std::uint64_t log_bytes,
               std::vector<CandidateGroup> groups)
    : config_(config),
      model_(model),
      budgets_(budgets),
      room_(budgets),
      trials_(model, costs, log_bytes),
      relaxation_(config, model, costs),
      groups_(std::move(groups)),
      needs_(groups_.size()) {}

// A group's need is the larger of the coarse and the exact one of its most frugal candidate, so
// that a group that does not fit coarsely need not be compiled exactly.
bool Search::may_fit(std::size_t group) {
  const schedule::StepOptions& frugal = groups_[group].back();
  return planner::fits(home_bytes(model_, frugal), budgets_) &&
         planner::fits(frugal_need(group), budgets_);
}

const TierBytes& Search::frugal_need(std::size_t group) {
  return trials_.coarse_need(groups_[group].back());
}

const TierBytes& Search::group_need(std::size_t group) {
  std::optional<TierBytes>& need = needs_[group];
  if (need) return *need;
  Compiled frugal = trials_.exact(groups_[group].back());
  need = frugal.need.peak_bytes();
  const TierBytes& coarse = frugal_need(group);
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    (*need)[tier] = std::max((*need)[tier], coarse[tier]);
  }
  if (!frugal_ && planner::fits(*need, budgets_)) frugal_ = std::move(frugal);
  return *need;
}

bool Search::fits() {
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    if (may_fit(group) && planner::fits(group_need(group), budgets_)) return true;
  }
  return false;
}

// A refusal asks for the least need by several measures. By each of them a group's exact need is
// no smaller than its coarse one, so a group is compiled exactly only if its coarse need could be
// the least.
Refusal Search::refusal() {
  Refuser refuser(budgets_);
  std::vector<std::size_t> open(groups_.size());
  std::iota(open.begin(), open.end(), std::size_t{0});
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    if (needs_[group]) refuser.consider(*needs_[group]);
  }
  std::erase_if(open, [&](std::size_t group) { return needs_[group].has_value(); });
  while (true) {
    const auto next = std::find_if(open.begin(), open.end(), [&](std::size_t group) {
      return refuser.could_matter(frugal_need(group));
    });
    if (next == open.end()) return refuser.refusal();
    // The least coarse need of those that matter comes first.
    std::size_t best = *next;
    for (const std::size_t group : open) {
      const TierBytes& coarse = frugal_need(group);
      if (refuser.shortfall(coarse) < refuser.shortfall(frugal_need(best)) &&
          refuser.could_matter(coarse)) {
        best = group;
      }
    }
    refuser.consider(group_need(best));
    std::erase(open, best);
  }
}

std::vector<Search::Shape> Search::shapes() const {
  using Order = config::Config::Order;
  std::vector<Shape> list;
  const schedule::StepOptions& base = groups_.front().front();
  std::vector<schedule::StepOptions> updates = update_variants(config_, base);
  updates.insert(updates.begin(), base);
  for (const auto order : {schedule::ComputeOrder::kMicrobatch, schedule::ComputeOrder::kUnit}) {
    const bool by_unit = order == schedule::ComputeOrder::kUnit;
    const bool fixed = config_.train.order == (by_unit ? Order::kMicrobatch : Order::kUnit);
    if (fixed || (by_unit && config_.train.order == Order::kAuto && base.microbatches < 2))
      continue;
    for (const schedule::Recomputation& recompute : search_recomputations(config_, model_)) {
      for (const schedule::StepOptions& update : updates) {
        const PlanShape shape{order, update.update, recompute};
        const Places& places = config_.memory.place;
        if (const auto least = relaxation_.solve(shape, places, budgets_, {})) {
          list.push_back({shape, places, *least, schedule::summarize(model_, recompute).policy});
        }
      }
    }
  }
  sort_by_bound(list);
  return list;
}

void Search::sort_by_bound(std::vector<Shape>& shapes) {
  std::stable_sort(shapes.begin(), shapes.end(), [](const Shape& a, const Shape& b) {
    return a.least.seconds < b.least.seconds;
  });
}

std::string Search::Shape::text() const {
  std::string text = shape_text(shape) + ", recompute " + policy;
  for (const auto& [kind, name] : kKinds) {
    if (places.*kind != Place::kAuto) text += place_text(name, places.*kind);
  }
  return text;
}

// The shape with one more kind of state on one tier.
std::vector<Search::Shape> Search::narrowed(const PlanShape& shape, const Places& places) const {
  std::vector<Shape> list;
  for (const auto& [kind, name] : kKinds) {
    if (places.*kind != Place::kAuto) continue;
    for (const Place place : {Place::kDevice, Place::kPinned, Place::kStorage}) {
      Places narrower = places;
      narrower.*kind = place;
      if (const auto least = relaxation_.solve(shape, narrower, room_, {})) {
        list.push_back(
            {shape, narrower, *least, schedule::summarize(model_, shape.recompute).policy});
      }
    }
  }
  sort_by_bound(list);
  return list;
}

// The relaxation may mix places that the schedule cannot use well together. So the best shape is
// tried with all state of a kind on one tier, then the best of these with one more kind.
void Search::dive() {
  Places places = config_.memory.place;
  for (int depth = 0; depth < kDepth; ++depth) {
    const schedule::StepOptions best = found_.front().options;
    const PlanShape shape{best.order, best.update, best.recompute};
    std::optional<Places> narrower;
    for (const Shape& next : narrowed(shape, places)) {
      const double before = found_.front().seconds;
      if (next.least.seconds > before * kFaster) break;
      try_shape(next);
      if (found_.front().seconds < before) narrower = next.places;
    }
    if (!narrower) return;
    places = *narrower;
  }
}

schedule::StepOptions Search::base_options(const PlanShape& shape) const {
  schedule::StepOptions options = groups_.front().front();
  options.order = shape.order;
  options.update = shape.update;
  options.recompute = shape.recompute;
  options.weight_slots = 0;
  options.prefetch = static_cast<std::int32_t>(config_.memory.prefetch);
  return options;
}

// Activations that leave the device: the first items of a choice, up to the share that leaves it.
schedule::StepOptions Search::placed(const PlanShape& shape, const Relaxed& places) const {
  schedule::StepOptions options = base_options(shape);
  options.placement.weight = spread_shares(places.weight, model_);
  options.placement.gradient = spread_shares(places.gradient, model_);
  options.placement.optimizer = spread_shares(places.optimizer, model_);
  for (std::size_t unit = 0; unit < model_.units.size(); ++unit) {
    const schedule::Placement& placement = options.placement;
    const bool there =
        placement.weight[unit] == Tier::kDevice && placement.gradient[unit] == Tier::kDevice;
    if (placement.optimizer[unit] != Tier::kDevice || there) continue;
    options.placement.optimizer[unit] = Tier::kPinned;
  }
  const auto slots = static_cast<double>(weight_slots_of_all(model_, options.chunk_bytes));
  options.weight_slots = static_cast<std::uint64_t>(std::floor(places.cached * slots));
  if (config_.memory.place.activation != config::Config::Place::kAuto) return options;
  const double away = 1 - std::min(places.saved[0], places.outputs[0]);
  if (away < 1e-6) return options;
  const double to_storage = std::max(places.saved[2], places.outputs[2]);
  const SpillChoice choice(config_, model_, options,
                           to_storage > 1e-6 ? Tier::kStorage : Tier::kPinned);
  return choice.with_share(away);
}

// Keeps the plan if it fits. Returns whether it does.
bool Search::consider(const schedule::StepOptions& options) {
  if (!planner::fits(home_bytes(model_, options), room_)) return false;
  if (step_size(model_, options) > kMostStepInstructions) return false;
  const Trial& trial = trials_.coarse(options);
  if (!planner::fits(trial.need, room_)) return false;
  const bool known = std::any_of(found_.begin(), found_.end(),
                                 [&](const Found& found) { return found.options == options; });
  if (known) return true;
  const auto after = std::find_if(found_.begin(), found_.end(), [&](const Found& found) {
    return trial.seconds < found.seconds;
  });
  found_.insert(after, {options, trial.seconds});
  return true;
}

// Whether the plan is faster than the best so far.
bool Search::better(const schedule::StepOptions& options) {
  const double best = found_.front().seconds;
  return consider(options) && found_.front().seconds < best * kFaster;
}

void Search::try_shape(const Shape& shape) {
  TierBytes extra{};
  std::optional<double> best;
  Relaxed places = shape.least;
  schedule::StepOptions options;
  for (int round = 0; round < kRounds; ++round) {
    options = placed(shape.shape, places);
    const Trial& trial = trials_.coarse(options);
    if (consider(options)) best = std::min(best.value_or(trial.seconds), trial.seconds);
    const TierBytes now = beyond(trial.need, relaxation_.accounted_bytes(options));
    if (now == extra && round > 0) break;
    // Rounding to whole units leaves some room, so the bytes beyond may shrink again.
    for (std::size_t tier = 0; tier < kTierCount; ++tier) {
      extra[tier] = best ? now[tier] : std::max(extra[tier], now[tier]);
    }
    const std::optional<Relaxed> next = relaxation_.solve(shape.shape, shape.places, room_, extra);
    if (!next) break;
    places = *next;
  }
  if (!best) best = spill_least(options);
  if (!best) best = spill_least(frugal_options(shape));
  tried_.push_back({shape.text(), shape.least.seconds, best});
}

// The most frugal candidate's places with the shape's passes.
schedule::StepOptions Search::frugal_options(const Shape& shape) const {
  schedule::StepOptions options = frugal_->options;
  options.order = shape.shape.order;
  options.update = shape.shape.update;
  options.recompute = shape.shape.recompute;
  return options;
}

// From the least bound on, as long as it is below the best plan.
void Search::try_shapes(const std::vector<Shape>& shapes) {
  tried_.clear();
  for (const Shape& shape : shapes) {
    if (found_.empty() || shape.least.seconds < found_.front().seconds * kFaster) {
      try_shape(shape);
    } else {
      tried_.push_back({shape.text(), shape.least.seconds, std::nullopt});
    }
  }
}

// The fewest activations off the device that let a placement fit, by coarse trials. Returns the
// time of the step; nothing if it does not fit.
std::optional<double> Search::spill_least(const schedule::StepOptions& options) {
  if (config_.memory.place.activation != Place::kAuto) return std::nullopt;
  for (const Tier tier : {Tier::kPinned, Tier::kStorage}) {
    const SpillChoice choice(config_, model_, options, tier);
    if (choice.count() == 0 || !consider(choice.with(choice.count()))) continue;
    std::size_t too_few = 0;
    std::size_t enough = choice.count();
    while (enough - too_few > 1) {
      const std::size_t count = too_few + (enough - too_few) / 2;
      (consider(choice.with(count)) ? enough : too_few) = count;
    }
    return trials_.coarse(choice.with(enough)).seconds;
  }
  return std::nullopt;
}

// The candidates of the first groups that fit, for configurations that leave little room.
void Search::try_groups() {
  constexpr std::size_t kEnough = 4;
  for (std::size_t i = 0; i < groups_.size() && found_.size() < kEnough; ++i) {
    if (!may_fit(i) || !planner::fits(group_need(i), budgets_)) continue;
    for (const schedule::StepOptions& options : groups_[i]) consider(options);
  }
}

// Promotes as many units as the room that is left takes. Other needs of a plan may grow or shrink
// with them, so fewer units are tried where these do not fit.
bool Search::promote(const Promotion& promotion) {
  const schedule::StepOptions best = found_.front().options;
  const std::vector<std::size_t> units = promotable_units(best.placement, promotion);
  const auto tier = static_cast<std::size_t>(promotion.to);
  const std::uint64_t needed = trials_.coarse(best).need[tier];
  if (needed > room_[tier]) return false;
  std::size_t count = units_that_fit(model_, best, promotion, units, room_[tier] - needed);
  for (int tries = 0; count > 0 && tries < kPromotionTries; ++tries, count = count * 3 / 4) {
    schedule::StepOptions options = best;
    options.placement = promoted(best.placement, promotion, units, count);
    const double before = found_.front().seconds;
    if (consider(options)) return found_.front().seconds < before;
  }
  return false;
}

// Options that differ from `from` in one setting.
std::vector<schedule::StepOptions> Search::changes(const schedule::StepOptions& from) const {
  std::vector<schedule::StepOptions> list = update_variants(config_, from);
  const auto add = [&](const auto& change) {
    list.push_back(from);
    change(list.back());
  };
  const auto most = static_cast<std::int32_t>(config_.memory.prefetch);
  for (std::int32_t prefetch = 0; prefetch <= most; ++prefetch) {
    if (prefetch != from.prefetch) add([&](auto& to) { to.prefetch = prefetch; });
  }
  if (from.weight_slots > 0) add([](auto& to) { to.weight_slots = 0; });
  for (const schedule::Recomputation& recompute : search_recomputations(config_, model_)) {
    if (recompute != from.recompute) add([&](auto& to) { to.recompute = recompute; });
  }
  for (const schedule::Recomputation& less : less_recomputed(from.recompute)) {
    if (config_.recompute.policy != config::Config::Recompute::kAuto) break;
    add([&](auto& to) { to.recompute = less; });
  }
  if (config_.train.order == config::Config::Order::kAuto && from.microbatches > 1) {
    add([](auto& to) {
      to.order = to.order == schedule::ComputeOrder::kUnit ? schedule::ComputeOrder::kMicrobatch
                                                           : schedule::ComputeOrder::kUnit;
    });
  }
  add([](auto& to) { to.shares_device = !to.shares_device; });
  return list;
}

// Single changes, as long as one of them makes the step shorter; promotions fill the room that is
// left.
void Search::improve() {
  const std::size_t first = trials_.count();
  bool changed = true;
  while (changed && trials_.count() - first < kMostChanges) {
    changed = false;
    for (const Promotion& promotion : possible_promotions(config_)) changed |= promote(promotion);
    for (const schedule::StepOptions& options : changes(found_.front().options)) {
      if (trials_.count() - first >= kMostChanges) break;
      changed |= better(options);
    }
  }
}

// The fastest of the first finalists that fit exactly. If the first does not fit, the room shrinks.
std::optional<Compiled> Search::confirm_found() {
  std::optional<Compiled> best;
  std::size_t confirmed = 0;
  for (const Found& found : found_) {
    const std::uint64_t size = step_size(model_, found.options);
    if (confirmed == (size > kLargeStep ? 1 : kFinalists)) break;
    if (best && found.seconds > best->simulation.total_s) break;
    Compiled compiled = trials_.exact(found.options);
    const TierBytes need = compiled.need.peak_bytes();
    if (!planner::fits(need, budgets_)) {
      if (best) continue;
      // Its coarse need fitted the room, so the room shrinks below it and the plan goes.
      const TierBytes& coarse = trials_.coarse(found.options).need;
      for (std::size_t tier = 0; tier < kTierCount; ++tier) {
        if (need[tier] <= budgets_[tier]) continue;
        const std::uint64_t over = need[tier] - budgets_[tier];
        room_[tier] = coarse[tier] - std::min(coarse[tier], over);
      }
      return std::nullopt;
    }
    trials_.simulate(compiled);
    ++confirmed;
    if (!best || compiled.simulation.total_s < best->simulation.total_s) best = std::move(compiled);
  }
  return best;
}

Compiled Search::confirm(const std::vector<Shape>& shapes) {
  for (int round = 0; round < kRounds; ++round) {
    if (std::optional<Compiled> best = confirm_found()) return std::move(*best);
    std::erase_if(found_, [&](const Found& found) {
      return !planner::fits(trials_.coarse(found.options).need, room_);
    });
    try_shapes(shapes);
    if (!found_.empty()) improve();
  }
  trials_.simulate(*frugal_);
  return std::move(*frugal_);
}

// Other pieces for an update that storage feeds. The simulation does not know all that they gain,
// so a slightly longer simulated step is accepted.
void Search::refine(Compiled& best) {
  const double longest_s = best.simulation.total_s * kRefinementSlack;
  const auto accept = [&](const schedule::StepOptions& options) {
    if (step_size(model_, options) > kMostStepInstructions) return false;
    Compiled compiled = trials_.exact(options);
    if (!planner::fits(compiled.need.peak_bytes(), budgets_)) return false;
    trials_.simulate(compiled);
    if (compiled.simulation.total_s > longest_s) return false;
    best = std::move(compiled);
    return true;
  };
  // Pieces one by one only if memory is short of more.
  schedule::StepOptions ahead = best.options;
  ahead.stream_lookahead = schedule::StepOptions{}.stream_lookahead;
  while (best.options.stream_lookahead == 0 && ahead.stream_lookahead > 0 && !accept(ahead)) {
    --ahead.stream_lookahead;
  }
  for (const schedule::StepOptions& options : update_piece_variants(model_, best.options)) {
    if (accept(options)) return;
  }
}

Compiled Search::fastest() {
  SLUICE_CHECK(frugal_.has_value());
  const runtime::MemoryNeed least = frugal_->need;
  const std::vector<Shape> all = shapes();
  bound_s_ = all.empty() ? 0 : all.front().least.seconds;
  try_shapes(all);
  if (found_.empty()) try_groups();
  if (!found_.empty()) {
    improve();
    dive();
    improve();
  }
  Compiled best = confirm(all);
  refine(best);
  settle_update(config_, model_, budgets_, trials_, best);
  if (spills_activations(best.options)) best.need = at_least(best.need, least);
  return best;
}

}  // namespace sluice::planner
