// Which units move, and how many. A promotion takes the units of its slower tier in model order and
// counts how many fit the room by comparing the bytes of all homes with and without them.
#include "engine/planner/search/promote.hpp"

#include "base/error.hpp"
#include "engine/planner/choice/candidates.hpp"

namespace sluice::planner {

// Five promotions at most. Gradients go to the device only together with optimizer state.
std::vector<Promotion> possible_promotions(const config::Config& config) {
  const auto& place = config.memory.place;
  std::vector<Promotion> promotions;
  const auto add = [&](config::Config::Place fixed, std::vector<Tier> schedule::Placement::*kind,
                       Tier from, Tier to) {
    if (fixed == config::Config::Place::kAuto) promotions.push_back({kind, from, to});
  };
  add(place.weight, &schedule::Placement::weight, Tier::kStorage, Tier::kPinned);
  add(place.gradient, &schedule::Placement::gradient, Tier::kStorage, Tier::kPinned);
  add(place.optimizer, &schedule::Placement::optimizer, Tier::kStorage, Tier::kPinned);
  add(place.weight, &schedule::Placement::weight, Tier::kPinned, Tier::kDevice);
  add(place.optimizer, &schedule::Placement::optimizer, Tier::kPinned, Tier::kDevice);
  const bool joined = place.optimizer == config::Config::Place::kAuto &&
                      place.gradient == config::Config::Place::kAuto;
  if (joined) promotions.back().with = &schedule::Placement::gradient;
  return promotions;
}

// An update on the device needs the unit's weights and gradients there.
std::vector<std::size_t> promotable_units(const schedule::Placement& placement,
                                          const Promotion& promotion) {
  const std::vector<Tier>& tiers = placement.*promotion.kind;
  const bool updates_there =
      promotion.kind == &schedule::Placement::optimizer && promotion.to == Tier::kDevice;
  std::vector<std::size_t> units;
  for (std::size_t unit = 0; unit < tiers.size(); ++unit) {
    if (tiers[unit] != promotion.from) continue;
    const bool joined = placement.gradient[unit] == Tier::kDevice ||
                        (promotion.with != nullptr && placement.gradient[unit] == promotion.from);
    const bool follows = placement.weight[unit] == Tier::kDevice && joined;
    if (!updates_there || follows) units.push_back(unit);
  }
  return units;
}

// Counts bytes of homes only; the caller compiles the plan to see the rest.
std::size_t units_that_fit(const schedule::StepModel& model, const schedule::StepOptions& options,
                           const Promotion& promotion, const std::vector<std::size_t>& units,
                           std::uint64_t room_bytes) {
  const auto held = [&](std::size_t count) {
    schedule::StepOptions changed = options;
    changed.placement = promoted(options.placement, promotion, units, count);
    return home_bytes(model, changed)[static_cast<std::size_t>(promotion.to)];
  };
  const std::uint64_t before = held(0);
  std::size_t count = 0;
  while (count < units.size() && held(count + 1) - before <= room_bytes) ++count;
  return count;
}

// Where the last units are, an update on the host has most time before the next use.
std::vector<schedule::Placement> demotions(const config::Config& config,
                                           const schedule::Placement& placement) {
  const auto& place = config.memory.place;
  const bool joined = place.optimizer == config::Config::Place::kAuto &&
                      place.gradient == config::Config::Place::kAuto;
  std::vector<std::size_t> there;
  for (std::size_t unit = 0; joined && unit < placement.optimizer.size(); ++unit) {
    if (placement.optimizer[unit] == Tier::kDevice) there.push_back(unit);
  }
  std::vector<schedule::Placement> list;
  for (const std::size_t part : {8, 4, 2}) {
    const std::size_t count = there.size() / part;
    if (count == 0) continue;
    list.push_back(placement);
    for (std::size_t i = there.size() - count; i < there.size(); ++i) {
      list.back().optimizer[there[i]] = list.back().gradient[there[i]] = Tier::kPinned;
    }
  }
  return list;
}

schedule::Placement promoted(schedule::Placement placement, const Promotion& promotion,
                             const std::vector<std::size_t>& units, std::size_t count) {
  SLUICE_CHECK(count <= units.size());
  for (std::size_t i = 0; i < count; ++i) {
    (placement.*promotion.kind)[units[i]] = promotion.to;
    if (promotion.with != nullptr) (placement.*promotion.with)[units[i]] = promotion.to;
  }
  return placement;
}

}  // namespace sluice::planner
