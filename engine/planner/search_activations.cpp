// The part of the search that places activations and leaves recomputation open: the fewest spills,
// mixtures of parts that stay, leave or are made again, and segments (activation_choice.hpp). The
// last two are chosen for the bytes that a plan's state leaves. What the schedule needs beyond them
// is known from a trial, so a second choice is closer.
#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "engine/planner/search.hpp"
#include "engine/planner/step_size.hpp"

namespace sluice::planner {
namespace {

constexpr double kNearStart = 1.05;  // starts that are improved are at most this much slower
constexpr int kMixRounds = 2;

}  // namespace

std::string Search::policy_of(const PlanShape& shape) const {
  if (shape.recompute_is_free) {
    return shape.hidden_price == PlanShape{}.hidden_price ? "auto" : "auto, few transfers";
  }
  return schedule::summarize(model_, shape.recompute).policy;
}

// The mixture of least time for the bytes that homes and `extra` leave; the most frugal one if none
// fits.
schedule::StepOptions Search::with_activations(const schedule::StepOptions& options,
                                               const TierBytes& extra) const {
  const TierBytes left = bytes_left(room_, home_bytes(model_, options), extra);
  using Spills = ActivationChoice::Spills;
  for (const Spills spills : {Spills::kNever, Spills::kMay}) {
    if (const auto mixed = activations_.by_parts(options, left, spills)) return *mixed;
  }
  schedule::StepOptions frugal = options;
  frugal.recompute = schedule::recompute_units(model_);
  return frugal;
}

// The activations of the best plan once more, for the bytes that its state leaves. What the
// schedule needs beyond them is known from its trial.
bool Search::mix_recomputation() {
  if (!activations_.is_free()) return false;
  const double before = found_.front().seconds;
  const schedule::StepOptions best = found_.front().options;
  using Spills = ActivationChoice::Spills;
  for (const Spills spills : {Spills::kNever, Spills::kMay}) {
    schedule::StepOptions now = best;
    for (int round = 0; round < kMixRounds; ++round) {
      const TierBytes extra = beyond(trials_.coarse(now).need, relaxation_.accounted_bytes(now));
      const TierBytes left = bytes_left(room_, home_bytes(model_, now), extra);
      const auto next = activations_.by_parts(now, left, spills);
      if (!next || *next == now) break;
      consider(*next);
      now = *next;
    }
  }
  return found_.front().seconds < before * kFaster;
}

// The same with segments, which drop outputs as well.
bool Search::cut_segments() {
  if (!activations_.is_free()) return false;
  const double before = found_.front().seconds;
  schedule::StepOptions now = found_.front().options;
  constexpr auto kDevice = static_cast<std::size_t>(Tier::kDevice);
  for (int round = 0; round < kMixRounds; ++round) {
    const std::uint64_t homes = home_bytes(model_, now)[kDevice];
    const std::uint64_t need = trials_.coarse(now).need[kDevice];
    const std::uint64_t others = need - std::min(need, activations_.segment_bytes(now));
    const std::uint64_t left = room_[kDevice] - std::min(room_[kDevice], std::max(homes, others));
    const auto next = activations_.by_segments(now, left);
    if (!next || *next == now) break;
    consider(*next);
    now = *next;
  }
  return found_.front().seconds < before * kFaster;
}

// The fewest activations off the device that let a placement fit, by coarse trials. Returns the
// time of the step; nothing if it does not fit.
std::optional<double> Search::spill_least(const schedule::StepOptions& options) {
  if (config_.memory.place.activation != config::Config::Place::kAuto) return std::nullopt;
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

std::vector<Tried> Search::tried() const {
  std::vector<Tried> list;
  for (const Attempt& attempt : attempts_) list.push_back(attempt.tried);
  return list;
}

bool Search::is_known(const schedule::StepOptions& options) const {
  return std::any_of(found_.begin(), found_.end(),
                     [&](const Found& found) { return found.options == options; });
}

// Single changes lead to a near minimum, so a plan that was slower before them may be faster after
// them. The best starts with other recomputations are improved by themselves, as far as trials are
// cheap.
void Search::improve_others() {
  if (step_size(model_, found_.front().options) > kSmallStep) return;
  std::vector<std::pair<Found, std::string>> starts;  // with their policies
  for (const Attempt& attempt : attempts_) {
    if (attempt.start) starts.emplace_back(*attempt.start, attempt.policy);
  }
  std::stable_sort(starts.begin(), starts.end(),
                   [](const auto& a, const auto& b) { return a.first.seconds < b.first.seconds; });
  std::vector<std::string> improved;
  for (const auto& [start, policy] : starts) {
    if (start.seconds > starts.front().first.seconds * kNearStart) return;
    if (std::find(improved.begin(), improved.end(), policy) != improved.end()) continue;
    improved.push_back(policy);
    if (improved.size() == 1) continue;  // the search began there
    std::vector<Found> known{start};
    known.swap(found_);
    improve();
    for (Found& found : known) {
      if (!is_known(found.options)) found_.push_back(std::move(found));
    }
    std::stable_sort(found_.begin(), found_.end(),
                     [](const Found& a, const Found& b) { return a.seconds < b.seconds; });
  }
}

}  // namespace sluice::planner
