// Trials are the costly part, so nearly all of them are coarse (trials.hpp), and a linear program
// of microseconds decides which are worth one.
//
// The program knows nothing of windows, staging and workspace. So a shape is tried in rounds: its
// places are compiled, the bytes that the schedule takes beyond them become part of the program,
// and its next solution leaves room for them. A few rounds settle where the last units go.
#include "engine/planner/search/search.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "base/error.hpp"
#include "base/units.hpp"
#include "engine/planner/bound/plan_steps.hpp"
#include "engine/planner/choice/piece_sizes.hpp"
#include "engine/planner/choice/recompute_choice.hpp"
#include "engine/planner/choice/step_size.hpp"
#include "engine/planner/search/settle_update.hpp"
#include "engine/schedule/compile/rank_share.hpp"

namespace sluice::planner {
namespace {

constexpr int kRounds = 5;  // for one shape
constexpr int kDepth = 4;   // kinds of state with one tier each
// Starts of the search: the fastest shapes, and the fastest with each order, update and policy of
// recomputation, as far as they come near the first one (kNearStart).
constexpr std::size_t kStarts = 2;
constexpr std::size_t kSpilledStarts = 1;  // more, with all activations in pinned memory
// No further start once so many trials were made from others.
constexpr std::size_t kStartTrials = 200;
constexpr double kDearHiddenWork = 0.2;  // of a mixture that prefers recomputation to transfers

// The need, but at least `least` in every tier.
runtime::MemoryNeed at_least(runtime::MemoryNeed need, const TierBytes& least) {
  const std::uint64_t device = need.peak_bytes()[0];
  const std::uint64_t wanted = least[0];
  if (device < wanted) {
    need.device_arena_bytes =
        need.shares_device ? wanted
                           : round_up(need.device_arena_bytes, kPageBytes) + (wanted - device);
  }
  const auto beside = [](std::uint64_t bytes, std::uint64_t fixed) {
    return bytes - std::min(bytes, fixed);
  };
  need.pinned_bytes = std::max(need.pinned_bytes, beside(least[1], need.fixed.staging_bytes));
  need.storage_bytes = std::max(need.storage_bytes, beside(least[2], need.fixed.log_bytes));
  return need;
}

// Whether the gradient and the parts of one more unit take little of the device. The search tries
// other lags later, but from a start that is short of memory it finds slower places.
bool has_room_to_lag(const schedule::StepModel& model, const TierBytes& budgets) {
  constexpr std::uint64_t kShare = 16;
  if (model.view.is_alone()) return false;
  std::uint64_t largest = 0;
  for (const schedule::UnitFootprint& unit : model.units) largest = std::max(largest, unit.elems);
  return kShare * 2 * largest * dtype_bytes(model.dtype) <= budgets.front();
}

using Place = config::Config::Place;
using Places = config::Config::Places;

constexpr std::array<Place, 3> kPlaces{Place::kDevice, Place::kPinned, Place::kStorage};
constexpr std::array<std::pair<Place Places::*, const char*>, 4> kKinds{{
    {&Places::weight, "weights"},
    {&Places::gradient, "gradients"},
    {&Places::optimizer, "optimizer state"},
    {&Places::activation, "activations"},
}};

std::string place_text(const char* name, Place place) {
  constexpr std::array<const char*, 4> kNames{"anywhere", "on the device", "in pinned memory",
                                              "on storage"};
  return std::string(", ") + name + " " + kNames[static_cast<std::size_t>(place)];
}

}  // namespace

Search::Search(const config::Config& config, const schedule::StepModel& model,
               const TierBytes& budgets, CostModel& costs, Trials& trials,
               std::vector<CandidateGroup> groups)
    : config_(config),
      model_(model),
      budgets_(budgets),
      trials_(trials),
      relaxation_(config, model, costs),
      activations_(config, model, costs),
      feasibility_(model, budgets, trials_, std::move(groups)),
      found_(config, model, budgets, trials_),
      improver_(config, model, trials_, found_, relaxation_, activations_) {}

std::string Search::policy_of(const PlanShape& shape) const {
  if (shape.recompute_is_free) {
    return shape.hidden_price == PlanShape{}.hidden_price ? "auto" : "auto, few transfers";
  }
  return schedule::summarize(model_, shape.recompute).policy;
}

std::vector<Search::Shape> Search::shapes() const {
  using Order = config::Config::Order;
  std::vector<Shape> list;
  const schedule::StepOptions& base = feasibility_.groups().front().front();
  std::vector<schedule::StepOptions> updates = update_variants(config_, base);
  updates.insert(updates.begin(), base);
  const auto add = [&](const PlanShape& shape) {
    const Places& places = config_.memory.place;
    if (const auto least = relaxation_.solve(shape, places, budgets_, {})) {
      list.push_back({shape, places, *least, policy_of(shape)});
    }
  };
  for (const auto order : {schedule::ComputeOrder::kMicrobatch, schedule::ComputeOrder::kUnit}) {
    const bool by_unit = order == schedule::ComputeOrder::kUnit;
    const bool fixed = config_.train.order == (by_unit ? Order::kMicrobatch : Order::kUnit);
    if (fixed ||
        (by_unit && config_.train.order == Order::kAuto && own_microbatch_count(model_, base) < 2))
      continue;
    schedule::StepOptions ordered = base;
    ordered.order = order;
    for (const Tier partial : partial_tiers(config_, model_, ordered)) {
      for (const schedule::StepOptions& update : updates) {
        PlanShape shape{order, update.update, {}};
        shape.partial = partial;
        for (const schedule::Recomputation& recompute : search_recomputations(config_, model_)) {
          shape.recompute = recompute;
          add(shape);
        }
        if (!activations_.is_free()) continue;
        shape.recompute = {};
        shape.recompute_is_free = true;
        add(shape);
        shape.hidden_price = kDearHiddenWork;
        add(shape);
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
  if (shape.partial != Tier::kDevice) {
    text += ", partial sums on " + std::string(tier_name(shape.partial));
  }
  for (const auto& [kind, name] : kKinds) {
    if (places.*kind != Place::kAuto) text += place_text(name, places.*kind);
  }
  if (thrift == Thrift::kOneAhead) text += ", one unit ahead";
  if (thrift == Thrift::kNothingAhead) text += ", nothing ahead";
  return thrift == Thrift::kSharedDevice ? text + ", shared device" : text;
}

// The start's shape with one more kind of state on one tier, or with another thrift. A mixture stays as
// it was found: one for each choice of places is as good in the mean, and takes more trials.
std::vector<Search::Shape> Search::narrowed(const Start& start) const {
  std::vector<Shape> list;
  Shape shape = start.shape;
  shape.shape.recompute = start.plan.options.recompute;
  shape.shape.recompute_is_free = false;
  shape.policy = policy_of(shape.shape);
  for (const auto& [kind, name] : kKinds) {
    if (shape.places.*kind != Place::kAuto) continue;
    for (const Place place : kPlaces) {
      Places places = shape.places;
      places.*kind = place;
      add_with_places(shape, places, list);
    }
  }
  for (const Thrift thrift : thrifts()) {
    if (thrift == shape.thrift) continue;
    Shape other = shape;
    other.thrift = thrift;
    add_with_places(other, shape.places, list);
  }
  sort_by_bound(list);
  return list;
}

std::vector<Search::Thrift> Search::thrifts() const {
  std::vector<Thrift> list{Thrift::kNone};
  if (config_.memory.prefetch > 1) list.push_back(Thrift::kOneAhead);
  if (config_.memory.prefetch > 0) list.push_back(Thrift::kNothingAhead);
  list.push_back(Thrift::kSharedDevice);
  return list;
}

void Search::add_with_places(const Shape& shape, const Places& places,
                             std::vector<Shape>& list) const {
  const auto least = relaxation_.solve(shape.shape, places, found_.room(), {});
  if (!least) return;
  list.push_back(shape);
  list.back().places = places;
  list.back().least = *least;
}

// The relaxation may mix places that the schedule cannot use well together, and knows no windows. So a
// shape is tried with all state of a kind on one tier and with other thrift, then the best of these
// changed once more. Returns the best plan.
Search::Start Search::narrow(Start start) {
  for (int depth = 0; depth < kDepth; ++depth) {
    std::optional<Start> best;
    for (const Shape& next : narrowed(start)) {
      if (next.least.seconds > start.plan.seconds) break;
      const std::optional<Shortlist::Found> plan = try_shape(next);
      if (plan && plan->seconds < (best ? *best : start).plan.seconds) best = Start{next, *plan};
    }
    if (!best) return start;
    start = *best;
  }
  return start;
}

// Coarse times are a few percent off and the search is greedy, so it starts at the few fastest
// shapes.
void Search::search(const std::vector<Shape>& shapes) {
  std::vector<Start> starts = try_shapes(shapes);
  if (starts.empty()) return;
  std::stable_sort(starts.begin(), starts.end(),
                   [](const Start& a, const Start& b) { return a.plan.seconds < b.plan.seconds; });
  const std::size_t most = trials_.count() + kStartTrials;
  std::array<std::size_t, 2> left{kStarts, kSpilledStarts};
  // From plans with less ahead no single change leads to one with as much as is allowed, or back.
  std::vector<std::tuple<schedule::ComputeOrder, schedule::UpdatePlacement, bool, std::string>>
      kinds;
  std::vector<const schedule::StepOptions*> seen;  // two shapes may end in one plan
  for (const Start& start : starts) {
    const bool is_known = std::any_of(
        seen.begin(), seen.end(), [&](const auto* plan) { return *plan == start.plan.options; });
    if (is_known) continue;
    seen.push_back(&start.plan.options);
    const bool is_spilled = start.shape.places.activation != config_.memory.place.activation;
    std::size_t& more = left[is_spilled ? 1 : 0];
    const std::tuple own(start.shape.shape.order, start.shape.shape.update,
                         start.shape.thrift != Thrift::kNone, start.shape.policy);
    const bool is_new = std::find(kinds.begin(), kinds.end(), own) == kinds.end();
    if (more == 0 && !is_new) continue;
    if (is_new) kinds.push_back(own);
    if (more > 0) --more;
    if (start.plan.seconds > starts.front().plan.seconds * kNearStart) break;
    if (trials_.count() > most) break;
    improver_.improve(start.plan);
    improver_.improve(narrow(start).plan);
  }
}

schedule::StepOptions Search::base_options(const Shape& shape) const {
  schedule::StepOptions options = feasibility_.groups().front().front();
  options.order = shape.shape.order;
  options.update = shape.shape.update;
  options.recompute = shape.shape.recompute;
  place_partials(options, shape.shape.partial, model_);
  options.weight_slots = 0;
  options.prefetch = static_cast<std::int32_t>(config_.memory.prefetch);
  options.exchange_lag = has_room_to_lag(model_, budgets_) ? 1 : 0;
  if (shape.thrift == Thrift::kOneAhead) {
    options.prefetch = std::min(options.prefetch, 1);
  } else if (shape.thrift != Thrift::kNone) {
    options.prefetch = 0;
  }
  if (shape.thrift == Thrift::kSharedDevice) {
    const schedule::StepOptions& least = feasibility_.groups().front().back();
    options.shares_device = true;
    options.piece_elems = least.piece_elems;
    options.stream_lookahead = least.stream_lookahead;
  } else {
    make_staging_roomy(model_, budgets_[static_cast<std::size_t>(Tier::kPinned)], options);
  }
  return options;
}

// Activations that leave the device: the first items of a choice, up to the share that leaves it.
schedule::StepOptions Search::placed(const Shape& shape, const Relaxed& places,
                                     const TierBytes& extra) const {
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
  options.weight_slots =
      static_cast<std::uint64_t>(std::floor(std::max(places.cached, 0.0) * slots));
  if (shape.shape.recompute_is_free) return improver_.mixed(options, extra);
  if (config_.memory.place.activation != Place::kAuto) return options;
  const double away = 1 - std::min(places.saved[0], places.outputs[0]);
  if (away < 1e-6) return options;
  const bool to_storage = std::max(places.saved[2], places.outputs[2]) > 1e-6;
  const SpillChoice choice(config_, model_, options, to_storage ? Tier::kStorage : Tier::kPinned);
  return choice.with_share(away);
}

std::optional<Shortlist::Found> Search::try_shape(const Shape& shape) {
  TierBytes extra{};
  std::optional<Shortlist::Found> best;
  Relaxed places = shape.least;
  schedule::StepOptions options;
  for (int round = 0; round < kRounds; ++round) {
    options = placed(shape, places, extra);
    const std::optional<double> seconds = found_.consider(options);
    if (seconds && (!best || *seconds < best->seconds)) best = {options, *seconds};
    const TierBytes now = beyond(trials_.coarse(options).need, resting_bytes(model_, options));
    if (now == extra && round > 0) break;
    // Rounding to whole units leaves some room, so the bytes beyond may shrink again.
    for (std::size_t tier = 0; tier < kTierCount; ++tier) {
      extra[tier] = best ? now[tier] : std::max(extra[tier], now[tier]);
    }
    const std::optional<Relaxed> next =
        relaxation_.solve(shape.shape, shape.places, found_.room(), extra);
    // The bytes beyond hold windows that keep weights. The shape may fit without these.
    if (!next && places.cached == 0) break;
    if (next) {
      places = *next;
    } else {
      places.cached = 0;
    }
  }
  // Rounds may go to and fro between many windows and fewer ones.
  if (!best && options.weight_slots > 0) {
    places.cached = 0;
    options = placed(shape, places, extra);
    const std::optional<double> seconds = found_.consider(options);
    if (seconds) best = {options, *seconds};
  }
  // Windows that keep weights may have taken the room of activations.
  const bool spills = best && schedule::spills_activations(best->options.placement);
  if (spills && best->options.weight_slots > 0 && !shape.shape.recompute_is_free) {
    places.cached = 0;
    places.saved = places.outputs = {1, 0, 0};
    options = placed(shape, places, extra);
    const std::optional<double> seconds = found_.consider(options);
    if (seconds && *seconds < best->seconds) best = {options, *seconds};
  }
  tried_.push_back({shape.text(), shape.least.seconds, std::nullopt, {}});
  if (best) {
    tried_.back().best_s = best->seconds;
    tried_.back().best = best->options;
  }
  return best;
}

// The most frugal candidate's places with the shape's passes.
schedule::StepOptions Search::frugal_options(const Shape& shape) const {
  schedule::StepOptions options = feasibility_.frugal();
  options.order = shape.shape.order;
  options.update = shape.shape.update;
  options.recompute = shape.shape.recompute;
  place_partials(options, shape.shape.partial, model_);
  return options;
}

// From the least bound on, as long as it is below the best plan. Returns the plans that fit.
std::vector<Search::Start> Search::try_shapes(const std::vector<Shape>& shapes) {
  std::vector<Start> starts;
  tried_.clear();
  for (const Shape& shape : shapes) {
    if (!found_.would_be_better(shape.least.seconds)) {
      tried_.push_back({shape.text(), shape.least.seconds, std::nullopt, {}});
      continue;
    }
    try_or_spill(shape, starts);
  }
  return starts;
}

// The candidates of the first groups that fit, for configurations that leave little room.
void Search::consider_groups() {
  constexpr std::size_t kEnough = 2;
  const std::vector<CandidateGroup>& groups = feasibility_.groups();
  std::size_t fitting = 0;
  for (std::size_t i = 0; i < groups.size() && fitting < kEnough; ++i) {
    if (!found_.consider(groups[i].back())) continue;
    ++fitting;
    for (const schedule::StepOptions& options : groups[i]) found_.consider(options);
  }
}

// A speculative step keeps no second copy of state with deferred updates. With half of them
// deferred other places fit, so the search goes on from there, too. The exact number is settled
// last. Returns the best plan before; nothing if there is no choice.
std::optional<Shortlist::Found> Search::try_carried() {
  const Shortlist::Found before = found_.front();
  if (before.options.update != schedule::UpdatePlacement::kSpeculative) return std::nullopt;
  const auto half = static_cast<std::int32_t>(model_.units.size() / 2);
  std::optional<Shortlist::Found> other;
  for (const schedule::StepOptions& options : carried_variants(config_, before.options)) {
    if (options.carried_units != half) continue;
    const auto seconds = found_.consider(options);
    if (!seconds) continue;
    improver_.improve({options, *seconds});
    other = before;
  }
  return other;
}

Compiled Search::confirm() {
  for (int round = 0; round < kRounds; ++round) {
    if (std::optional<Compiled> best = found_.confirm()) return std::move(*best);
    search(shapes());
  }
  Compiled frugal = trials_.exact(feasibility_.frugal());
  SLUICE_CHECK(planner::fits(frugal.most_bytes, budgets_));
  trials_.simulate(frugal);
  return frugal;
}

// Coarse trials of all shapes, and changes to the best.
void Search::explore() {
  const std::vector<Shape> all = shapes();
  bound_s_ = all.empty() ? 0 : all.front().least.seconds;
  search(all);
  if (found_.empty()) consider_groups();
}

Compiled Search::settled(Compiled best) {
  settle_update(config_, model_, budgets_, trials_, best);
  return best;
}

// Coarse trials misjudge deferred updates and know no deep ring. So the best plan without them
// and the other finalists of a ring are settled as well. Where all of these wait for storage, the one
// that computes least may gain most.
Compiled Search::conclude() {
  std::vector<Shortlist::Found> others;
  if (!found_.empty()) {
    improver_.improve(found_.front());
    if (auto uncarried = try_carried()) others.push_back(std::move(*uncarried));
  }
  Compiled best = confirm();
  std::vector<schedule::StepOptions> settled_from{best.options};
  best = settled(std::move(best));
  if (best.options.keeps_update_ring || !carried_variants(config_, best.options).empty()) {
    for (Shortlist::Found& found : found_.finalists()) others.push_back(std::move(found));
    if (auto lean = found_.least_compute()) others.push_back(std::move(*lean));
  }
  for (const Shortlist::Found& found : others) {
    const auto same = [&](const schedule::StepOptions& options) {
      return found.options.placement == options.placement &&
             found.options.recompute == options.recompute &&
             found.options.carried_units == options.carried_units;
    };
    if (same(best.options) || std::any_of(settled_from.begin(), settled_from.end(), same)) continue;
    settled_from.push_back(found.options);
    std::optional<Compiled> other = found_.compile(found);
    if (other) other = settled(std::move(*other));
    if (other && other->simulation.total_s < best.simulation.total_s) best = std::move(*other);
  }
  return fastest_of_tried(std::move(best));
}

// The search finds places that no group has, and they may take less of a tier than any group's most
// frugal candidate. Budgets between the two would be refused. Finding a group takes up to a third of
// the search, so plans of long steps do without, unless they spill: there the gap is the widest.
void Search::state_need(Compiled& plan) {
  if (step_size(model_, plan.options) > kSmallStepInstructions &&
      !schedule::spills_activations(plan.options.placement))
    return;
  if (const auto least = feasibility_.nearest_need(plan.most_bytes)) {
    plan.need = at_least(plan.need, *least);
  }
}

// Where plans hardly differ by a coarse trial, only one is compiled. Another one that was tried exactly
// may be faster.
Compiled Search::fastest() {
  explore();
  Compiled best = conclude();
  if (auto faster = trials_.fastest_exact(best.simulation.total_s, budgets_)) {
    best = std::move(*faster);
  }
  Trials::link(best);
  state_need(best);
  return best;
}

}  // namespace sluice::planner
