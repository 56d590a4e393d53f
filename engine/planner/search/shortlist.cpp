// Coarse times are a few percent off, so the finalists are the fastest plans that differ in more
// than a detail: of plans with the same passes and nearly the same time, only the first one counts.
#include "engine/planner/search/shortlist.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/planner/choice/candidates.hpp"
#include "engine/planner/choice/piece_sizes.hpp"
#include "engine/planner/choice/step_size.hpp"

namespace sluice::planner {
namespace {

constexpr double kFaster = 0.999;  // a plan must be faster by this much to be taken
constexpr std::size_t kFinalists = 3;
// From this many instructions on, one finalist takes about a second, and there is no other.
constexpr std::uint64_t kLargeStep = 250'000;
// The same where all settings are made by hand, so that finalists differ in details alone.
constexpr std::size_t kLargeStepByHand = 40'000;
constexpr double kAlike = 0.003;           // times of plans that hardly differ
constexpr double kNear = 1.05;             // a finalist's time by that of the fastest
constexpr double kRefinementSlack = 1.02;  // refined() accepts a step this much longer

bool same_passes(const schedule::StepOptions& a, const schedule::StepOptions& b) {
  return a.order == b.order && a.update == b.update && a.recompute == b.recompute;
}

}  // namespace

Shortlist::Shortlist(const config::Config& config, const schedule::StepModel& model,
                     const TierBytes& budgets, Trials& trials)
    : model_(model),
      budgets_(budgets),
      room_(budgets),
      trials_(trials),
      is_by_hand_(makes_all_choices(config)) {}

std::optional<double> Shortlist::consider(const schedule::StepOptions& options) {
  if (!planner::fits(home_bytes(model_, options), room_)) return std::nullopt;
  if (step_size(model_, options) > kMostStepInstructions) return std::nullopt;
  const Trial& trial = trials_.coarse(options);
  if (!planner::fits(trial.need, room_)) return std::nullopt;
  const bool known = std::any_of(found_.begin(), found_.end(),
                                 [&](const Found& found) { return found.options == options; });
  if (known) return trial.seconds;
  const auto after = std::find_if(found_.begin(), found_.end(), [&](const Found& found) {
    return trial.seconds < found.seconds;
  });
  found_.insert(after, {options, trial.seconds});
  return trial.seconds;
}

bool Shortlist::would_be_better(double seconds) const {
  return found_.empty() || seconds < found_.front().seconds * kFaster;
}

std::vector<Shortlist::Found> Shortlist::finalists() const {
  std::vector<Found> list;
  for (const Found& found : found_) {
    if (list.size() == kFinalists || found.seconds > found_.front().seconds * kNear) break;
    const bool alike = std::any_of(list.begin(), list.end(), [&](const Found& other) {
      return same_passes(found.options, other.options) &&
             std::abs(found.seconds / other.seconds - 1) < kAlike;
    });
    if (alike) continue;
    list.push_back(found);
    if (step_size(model_, found.options) > kLargeStep) break;
  }
  return list;
}

std::optional<Shortlist::Found> Shortlist::least_compute() const {
  const auto compute_s = [&](const Found& found) {
    return trials_.coarse(found.options).compute_s;
  };
  std::optional<Found> least;
  double least_s = 0;
  for (const Found& found : found_) {
    if (found.seconds > found_.front().seconds * kNear) break;
    const double seconds = compute_s(found);
    if (least && seconds >= least_s) continue;
    least = found;
    least_s = seconds;
  }
  if (!least || least_s * kNear > compute_s(found_.front())) return std::nullopt;
  return least;
}

// Other pieces for an update that storage feeds. Pieces that make copies to and from the device too
// short are slower and rejected. The simulation does not know all that they gain, so a slightly
// longer simulated step is accepted.
schedule::StepOptions Shortlist::refined(schedule::StepOptions options) {
  const double longest_s = trials_.coarse(options).seconds * kRefinementSlack;
  const auto accept = [&](const schedule::StepOptions& variant) {
    if (step_size(model_, variant) > kMostStepInstructions) return false;
    const Trial& trial = trials_.coarse(variant);
    if (!planner::fits(trial.need, room_) || trial.seconds > longest_s) return false;
    options = variant;
    return true;
  };
  // Pieces one by one only if memory is short of more.
  schedule::StepOptions ahead = options;
  ahead.stream_lookahead = schedule::StepOptions{}.stream_lookahead;
  while (options.stream_lookahead == 0 && ahead.stream_lookahead > 0 && !accept(ahead)) {
    --ahead.stream_lookahead;
  }
  for (const schedule::StepOptions& variant : update_piece_variants(model_, options)) {
    if (accept(variant)) break;
  }
  return options;
}

// The exact plan, with refined pieces if these fit exactly too. Nothing: neither fits.
std::optional<Compiled> Shortlist::compile(const Found& found) {
  const schedule::StepOptions fine = refined(found.options);
  Compiled compiled = trials_.place_all(fine, budgets_);
  if (!planner::fits(compiled.most_bytes, budgets_)) {
    if (fine == found.options) {
      shrink_room(fine, compiled.most_bytes);
      return std::nullopt;
    }
    compiled = trials_.place_all(found.options, budgets_);
    if (!planner::fits(compiled.most_bytes, budgets_)) {
      shrink_room(found.options, compiled.most_bytes);
      return std::nullopt;
    }
  }
  trials_.simulate(compiled);
  return compiled;
}

// The coarse need fitted the room, so the room shrinks below it.
void Shortlist::shrink_room(const schedule::StepOptions& options, const TierBytes& need) {
  const TierBytes& coarse = trials_.coarse(options).need;
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    if (need[tier] <= budgets_[tier]) continue;
    const std::uint64_t over = need[tier] - budgets_[tier];
    room_[tier] = std::min(room_[tier], coarse[tier] - std::min(coarse[tier], over));
  }
}

std::optional<Compiled> Shortlist::confirm() {
  std::optional<Compiled> best;
  const auto is_long = [](const Compiled& plan) {
    return plan.schedules[schedule::StepKind::kTraining].instructions.size() > kLargeStepByHand;
  };
  for (const Found& found : finalists()) {
    if (best && is_by_hand_ && is_long(*best)) break;
    // The training step alone tells whether the next one is faster.
    if (best &&
        trials_.training(refined(found.options)).simulation.total_s >= best->simulation.total_s) {
      continue;
    }
    std::optional<Compiled> compiled = compile(found);
    if (!compiled) {
      if (best) continue;
      std::erase_if(found_, [&](const Found& other) {
        return !planner::fits(trials_.coarse(other.options).need, room_);
      });
      return std::nullopt;
    }
    if (!best || compiled->simulation.total_s < best->simulation.total_s) {
      best = std::move(compiled);
    }
  }
  return best;
}

}  // namespace sluice::planner
