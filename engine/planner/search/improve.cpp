// Each round takes the changes in order, each on top of those taken before it.
#include "engine/planner/search/improve.hpp"

#include <algorithm>
#include <array>

#include "engine/planner/bound/plan_steps.hpp"
#include "engine/planner/choice/candidates.hpp"
#include "engine/planner/choice/piece_sizes.hpp"
#include "engine/planner/choice/recompute_choice.hpp"
#include "engine/schedule/compile/compute_items.hpp"
#include "engine/schedule/compile/rank_share.hpp"

namespace sluice::planner {
namespace {

constexpr std::size_t kMostChanges = 48;  // trials for one start
constexpr int kPromotionTries = 4;
constexpr double kFaster = 0.999;  // a change must be faster by this much to be taken
constexpr std::array<std::int32_t, 3> kLookaheads{2, 4, 8};
constexpr std::int32_t kMostExchangeLag = 2;

}  // namespace

bool Improver::take(const schedule::StepOptions& options, Shortlist::Found& best) {
  const std::optional<double> seconds = shortlist_.consider(options);
  if (!seconds || *seconds >= best.seconds * kFaster) return false;
  best = {options, *seconds};
  return true;
}

// Promotes as many units as the room that is left takes. Other needs of a plan may grow or shrink
// with them, so fewer units are tried where these do not fit.
bool Improver::promote(const Promotion& promotion, Shortlist::Found& best) {
  const schedule::StepOptions from = best.options;
  const std::vector<std::size_t> units = promotable_units(from.placement, promotion);
  const auto tier = static_cast<std::size_t>(promotion.to);
  const std::uint64_t room = shortlist_.room()[tier];
  const std::uint64_t needed = trials_.coarse(from).need[tier];
  if (needed > room) return false;
  std::size_t count = units_that_fit(model_, from, promotion, units, room - needed);
  for (int tries = 0; count > 0 && tries < kPromotionTries; ++tries, count = count * 3 / 4) {
    schedule::StepOptions options = from;
    options.placement = promoted(from.placement, promotion, units, count);
    if (take(options, best)) return true;
    if (shortlist_.consider(options)) return false;
  }
  return false;
}

// Each changes one setting.
std::vector<Improver::Change> Improver::changes(const schedule::StepOptions& from) const {
  std::vector<Change> list;
  std::vector<schedule::StepOptions> updates = update_variants(config_, from);
  if (!updates.empty()) {
    updates.push_back(from);
    updates.back().update = schedule::UpdatePlacement::kAfterBackward;
  }
  for (const schedule::StepOptions& other : updates) {
    list.emplace_back([update = other.update](auto& to) { to.update = update; });
  }
  const auto most = static_cast<std::int32_t>(config_.memory.prefetch);
  for (std::int32_t prefetch = 0; prefetch <= most; ++prefetch) {
    list.emplace_back([prefetch](auto& to) { to.prefetch = prefetch; });
  }
  for (const std::int32_t lookahead : kLookaheads) {
    list.emplace_back([lookahead](auto& to) { to.stream_lookahead = lookahead; });
  }
  const std::uint64_t small = small_piece_elems(model_);
  list.emplace_back([](auto& to) { to.piece_elems *= 2; });
  list.emplace_back([small](auto& to) { to.piece_elems = std::max(to.piece_elems / 2, small); });
  list.emplace_back([](auto& to) { to.piece_elems *= 4; });
  for (std::int32_t lag = 0; lag <= kMostExchangeLag && !model_.view.is_alone(); ++lag) {
    list.emplace_back([lag](auto& to) { to.exchange_lag = lag; });
  }
  list.emplace_back([](auto& to) { to.weight_slots = 0; });
  for (const schedule::Recomputation& less : less_recomputed(from.recompute)) {
    if (config_.recompute.policy != config::Config::Recompute::kAuto) break;
    list.emplace_back([less](auto& to) { to.recompute = less; });
  }
  if (config_.train.order == config::Config::Order::kAuto &&
      own_microbatch_count(model_, from) > 1) {
    list.emplace_back([this](auto& to) {
      to.order = to.order == schedule::ComputeOrder::kUnit ? schedule::ComputeOrder::kMicrobatch
                                                           : schedule::ComputeOrder::kUnit;
      place_partials(to, partial_tiers(config_, model_, to).front(), model_);
    });
  }
  if (schedule::may_take_turns(model_) && own_microbatch_count(model_, from) > 1) {
    list.emplace_back([](auto& to) { to.turns = 3 - to.turns; });
  }
  for (const Tier partial : partial_tiers(config_, model_, from)) {
    list.emplace_back([this, partial](auto& to) { place_partials(to, partial, model_); });
  }
  for (const schedule::Placement& placement : demotions(config_, from.placement)) {
    list.emplace_back([placement](auto& to) {
      to.placement.optimizer = placement.optimizer;
      to.placement.gradient = placement.gradient;
    });
  }
  list.emplace_back([](auto& to) { to.shares_device = !to.shares_device; });
  for (const schedule::Recomputation& recompute : search_recomputations(config_, model_)) {
    list.emplace_back([recompute](auto& to) { to.recompute = recompute; });
  }
  return list;
}

void Improver::improve(Shortlist::Found from) {
  std::size_t first = trials_.count();
  const auto done = [&] { return trials_.count() - first >= kMostChanges; };
  bool changed = true;
  while (changed && !done()) {
    changed = false;
    for (const Promotion& promotion : possible_promotions(config_)) {
      changed |= promote(promotion, from);
    }
    const std::size_t before = trials_.count();
    changed |= mix_recomputation(from);
    changed |= cut_segments(from);
    first += trials_.count() - before;  // these do not count
    for (const Change& change : changes(from.options)) {
      if (done()) break;
      schedule::StepOptions options = from.options;
      change(options);
      if (options != from.options) changed |= take(options, from);
    }
  }
}

}  // namespace sluice::planner
