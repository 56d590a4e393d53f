// The changes that choose activations anew: mixtures of parts that stay, leave or are recomputed,
// and segments (activation_choice.hpp). Both are chosen for the bytes that a plan's state leaves.
// A trial shows the bytes that the schedule needs beyond them, so a second choice is closer.
#include <algorithm>

#include "engine/planner/choice/candidates.hpp"
#include "engine/planner/search/improve.hpp"

namespace sluice::planner {
namespace {

constexpr int kMixRounds = 2;
constexpr int kMostMovedGradients = 4;  // units

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
    const auto next = segments_within(now, left);
    if (!next || *next == now) break;
    taken |= take(*next, best);
    now = *next;
  }
  return taken;
}

// Gradients give way where nothing fits next to them: the last units' go where others are already.
std::optional<schedule::StepOptions> Improver::segments_within(const schedule::StepOptions& from,
                                                               std::uint64_t device_bytes) const {
  schedule::StepOptions options = from;
  auto segments = activations_.by_segments(options, device_bytes);
  std::vector<Tier>& gradients = options.placement.gradient;
  const Tier lowest = *std::max_element(gradients.begin(), gradients.end());
  if (lowest == Tier::kDevice) return segments;
  const auto on_device = [&] {
    return home_bytes(model_, options)[static_cast<std::size_t>(Tier::kDevice)];
  };
  const std::uint64_t before = on_device();
  int left = kMostMovedGradients;
  for (std::size_t unit = gradients.size(); unit-- > 0 && left > 0 && !segments;) {
    const bool updated_there = options.placement.optimizer[unit] == Tier::kDevice;
    if (gradients[unit] != Tier::kDevice || updated_there) continue;
    gradients[unit] = lowest;
    --left;
    segments = activations_.by_segments(options, device_bytes + before - on_device());
  }
  return segments;
}

}  // namespace sluice::planner
