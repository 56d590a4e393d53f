// The coarse placements that a plan starts from: a short list of presets, fastest first, each a
// tier or a split between two tiers for every kind of state.
#pragma once

#include <cstddef>
#include <vector>

#include "base/memory_kinds.hpp"
#include "engine/config/config.hpp"
#include "engine/schedule/compile/step_model.hpp"

namespace sluice::planner {

// A kind's units: the first ones, up to a number of quarters of the elements, lie on `first`, the
// others on `rest`.
struct TierShare {
  Tier first = Tier::kDevice;
  Tier rest = Tier::kDevice;
  int quarters = 4;
  bool operator==(const TierShare&) const = default;
};

struct PlacementPreset {
  TierShare weight, gradient, optimizer;
  TierShare activation = {};
  bool operator==(const PlacementPreset&) const = default;
};

// The presets in order of preference, with the places that memory.place.* gives put in. Presets
// that cannot be run are left out, and so are duplicates.
std::vector<PlacementPreset> placement_presets(const config::Config& config);

// Returns one tier per unit. Units get share.first in order, as long as their running total of
// elements fits the share; the others get share.rest.
std::vector<Tier> spread(const TierShare& share, const schedule::StepModel& model);
// The same for activations, by number of units.
std::vector<Tier> spread_activations(const TierShare& share, std::size_t units);

}  // namespace sluice::planner
