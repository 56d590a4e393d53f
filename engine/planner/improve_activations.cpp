// The changes that choose activations anew: mixtures of parts that stay, leave or are made again, and
// segments (activation_choice.hpp). Both are chosen for the bytes that a plan's state leaves. What
// the schedule needs beyond them is known from a trial, so a second choice is closer.
#include <algorithm>

#include "engine/planner/candidates.hpp"
#include "engine/planner/improve.hpp"

namespace sluice::planner {
namespace {

constexpr int kMixRounds = 2;

}  // namespace

schedule::StepOptions Improver::mixed(const schedule::StepOptions& options,
                                      const TierBytes& extra) const {
  const TierBytes left = bytes_left(shortlist_.room(), home_bytes(model_, options), extra);
  using Spills = ActivationChoice::Spills;
  for (const Spills spills : {Spills::kNever, Spills::kMay}) {
    if (const auto mixture = activations_.by_parts(options, left, spills)) return *mixture;
  }
  schedule::StepOptions frugal = options;
  frugal.recompute = schedule::recompute_units(model_);
  return frugal;
}

bool Improver::mix_recomputation(Shortlist::Found& best) {
  if (!activations_.is_free()) return false;
  bool taken = false;
  const schedule::StepOptions from = best.options;
  using Spills = ActivationChoice::Spills;
  for (const Spills spills : {Spills::kNever, Spills::kMay}) {
    schedule::StepOptions now = from;
    for (int round = 0; round < kMixRounds; ++round) {
      const TierBytes extra = beyond(trials_.coarse(now).need, resting_bytes(model_, now));
      const TierBytes left = bytes_left(shortlist_.room(), home_bytes(model_, now), extra);
      const auto next = activations_.by_parts(now, left, spills);
      if (!next || *next == now) break;
      taken |= take(*next, best);
      now = *next;
    }
  }
  return taken;
}

// Segments drop outputs as well.
bool Improver::cut_segments(Shortlist::Found& best) {
  if (!activations_.is_free()) return false;
  bool taken = false;
  schedule::StepOptions now = best.options;
  constexpr auto kDevice = static_cast<std::size_t>(Tier::kDevice);
  const std::uint64_t room = shortlist_.room()[kDevice];
  for (int round = 0; round < kMixRounds; ++round) {
    const std::uint64_t homes = home_bytes(model_, now)[kDevice];
    const std::uint64_t need = trials_.coarse(now).need[kDevice];
    const std::uint64_t others = need - std::min(need, activations_.segment_bytes(now));
    const std::uint64_t left = room - std::min(room, std::max(homes, others));
    const auto next = activations_.by_segments(now, left);
    if (!next || *next == now) break;
    taken |= take(*next, best);
    now = *next;
  }
  return taken;
}

}  // namespace sluice::planner
