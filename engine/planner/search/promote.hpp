// Promotion: a plan fills the room that is left on a faster tier with state from a slower one, unit
// by unit. So each kind's place becomes a sum of tiers. The candidates (candidates.hpp) have
// settled in coarse steps whether the configuration fits; promotion only makes the plan faster, and
// never causes a refusal.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/schedule/compile/step_model.hpp"

namespace sluice::planner {

// Moves weights, gradients or optimizer state of units from tier `from` to the faster tier `to`.
struct Promotion {
  std::vector<Tier> schedule::Placement::*kind = nullptr;
  Tier from = Tier::kStorage;
  Tier to = Tier::kPinned;
  // A second kind that moves along if it is not there yet. A gradient on the device is useful only
  // to an update on the device, so the two move together.
  std::vector<Tier> schedule::Placement::*with = nullptr;
};

// The promotions of a configuration in the order in which they are made: first off storage, then
// onto the device; within a tier, the kind that a step moves most often first. Kinds with a place
// given by memory.place.* are left out.
std::vector<Promotion> possible_promotions(const config::Config& config);

// The units that `promotion` may move, in the order in which it moves them. Optimizer state goes to
// the device only where the unit's weights are, and together with its gradients.
std::vector<std::size_t> promotable_units(const schedule::Placement& placement,
                                          const Promotion& promotion);

// The number of leading `units` with state of that kind that fits `room_bytes` of the faster tier.
std::size_t units_that_fit(const schedule::StepModel& model, const schedule::StepOptions& options,
                           const Promotion& promotion, const std::vector<std::size_t>& units,
                           std::uint64_t room_bytes);

// The placement with the optimizer state and the gradients of fewer units on the device: an eighth, a
// quarter or half of them go to pinned memory. An update there runs in parallel with the passes.
// None if the configuration gives either kind a place.
std::vector<schedule::Placement> demotions(const config::Config& config,
                                           const schedule::Placement& placement);

// The placement with the first `count` of `units` promoted.
schedule::Placement promoted(schedule::Placement placement, const Promotion& promotion,
                             const std::vector<std::size_t>& units, std::size_t count);

}  // namespace sluice::planner
