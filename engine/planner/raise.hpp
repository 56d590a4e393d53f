// What a plan leaves of a faster tier goes to state that lies on a slower one, unit by unit, so
// that each kind's place is a sum of tiers. The candidates (candidates.hpp) settle what fits, in
// coarse steps; this settles how well, and can refuse nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/schedule/compile/step_model.hpp"

namespace sluice::planner {

// Weights, gradients or optimizer state of units that lie on `from` and would be faster on `to`.
struct Raise {
  std::vector<Tier> schedule::Placement::*kind = nullptr;
  Tier from = Tier::kStorage;
  Tier to = Tier::kPinned;
  // Goes along where it is not there yet: on the device a gradient serves an update there alone.
  std::vector<Tier> schedule::Placement::*with = nullptr;
};

// In the order in which they are made: off storage first, then onto the device; within a tier
// what a step moves most often first. Kinds whose place memory.place.* gives are left there.
std::vector<Raise> possible_raises(const config::Config& config);

// The units that `raise` may move, in the order in which it does. An optimizer's state goes to the
// device behind the unit's weights, and with its gradients.
std::vector<std::size_t> raisable_units(const schedule::Placement& placement, const Raise& raise);

// How many of `units` have state of that kind in `room_bytes` of the faster tier.
std::size_t units_that_fit(const schedule::StepModel& model, const schedule::StepOptions& options, const Raise& raise,
                           const std::vector<std::size_t>& units, std::uint64_t room_bytes);

// The placement with the first `count` of `units` raised.
schedule::Placement raised(schedule::Placement placement, const Raise& raise, const std::vector<std::size_t>& units,
                 std::size_t count);

}  // namespace sluice::planner
