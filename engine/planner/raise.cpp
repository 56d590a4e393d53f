#include "engine/planner/raise.hpp"

#include "base/error.hpp"
#include "engine/planner/candidates.hpp"

namespace sluice::planner {

std::vector<Raise> possible_raises(const config::Config& config) {
  const auto& place = config.memory.place;
  std::vector<Raise> raises;
  const auto add = [&](config::Config::Place fixed, std::vector<Tier> schedule::Placement::*kind, Tier from,
                       Tier to) {
    if (fixed == config::Config::Place::kAuto) raises.push_back({kind, from, to});
  };
  add(place.weight, &schedule::Placement::weight, Tier::kStorage, Tier::kPinned);
  add(place.gradient, &schedule::Placement::gradient, Tier::kStorage, Tier::kPinned);
  add(place.optimizer, &schedule::Placement::optimizer, Tier::kStorage, Tier::kPinned);
  add(place.weight, &schedule::Placement::weight, Tier::kPinned, Tier::kDevice);
  add(place.optimizer, &schedule::Placement::optimizer, Tier::kPinned, Tier::kDevice);
  const bool joined =
      place.optimizer == config::Config::Place::kAuto && place.gradient == config::Config::Place::kAuto;
  if (joined) raises.back().with = &schedule::Placement::gradient;
  return raises;
}

std::vector<std::size_t> raisable_units(const schedule::Placement& placement, const Raise& raise) {
  const std::vector<Tier>& tiers = placement.*raise.kind;
  const bool updates_there = raise.kind == &schedule::Placement::optimizer && raise.to == Tier::kDevice;
  std::vector<std::size_t> units;
  for (std::size_t unit = 0; unit < tiers.size(); ++unit) {
    if (tiers[unit] != raise.from) continue;
    const bool joined = placement.gradient[unit] == Tier::kDevice ||
                        (raise.with != nullptr && placement.gradient[unit] == raise.from);
    const bool follows = placement.weight[unit] == Tier::kDevice && joined;
    if (!updates_there || follows) units.push_back(unit);
  }
  return units;
}

std::size_t units_that_fit(const schedule::StepModel& model, const schedule::StepOptions& options, const Raise& raise,
                           const std::vector<std::size_t>& units, std::uint64_t room_bytes) {
  const auto held = [&](std::size_t count) {
    schedule::StepOptions changed = options;
    changed.placement = raised(options.placement, raise, units, count);
    return home_bytes(model, changed)[static_cast<std::size_t>(raise.to)];
  };
  const std::uint64_t before = held(0);
  std::size_t count = 0;
  while (count < units.size() && held(count + 1) - before <= room_bytes) ++count;
  return count;
}

schedule::Placement raised(schedule::Placement placement, const Raise& raise, const std::vector<std::size_t>& units,
                 std::size_t count) {
  SLUICE_CHECK(count <= units.size());
  for (std::size_t i = 0; i < count; ++i) {
    (placement.*raise.kind)[units[i]] = raise.to;
    if (raise.with != nullptr) (placement.*raise.with)[units[i]] = raise.to;
  }
  return placement;
}

}  // namespace sluice::planner
