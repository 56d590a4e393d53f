// Presets are ordered by one rule: state that a step touches most often leaves the device last, and
// storage is filled last. Weights are read in every pass, gradients are written once per
// micro-batch, and optimizer state is touched once per step.
#include "engine/planner/choice/placement_presets.hpp"

#include <algorithm>

#include "base/units.hpp"

namespace sluice::planner {
namespace {

using Place = config::Config::Place;

constexpr TierShare whole(Tier tier) {
  return {tier, tier, 4};
}
constexpr TierShare kD = whole(Tier::kDevice);
constexpr TierShare kP = whole(Tier::kPinned);
constexpr TierShare kS = whole(Tier::kStorage);
constexpr TierShare pinned_quarters(int quarters) {
  return {Tier::kPinned, Tier::kStorage, quarters};
}

// Weight, gradient, optimizer; activations stay on the device.
const std::vector<PlacementPreset>& presets() {
  static const std::vector<PlacementPreset> list{
      {kD, kD, kD},
      {kD, kD, kP},
      {kD, kP, kP},
      {kP, kP, kP},
      {kP, kP, pinned_quarters(3)},
      {kP, kP, pinned_quarters(2)},
      {kP, kP, pinned_quarters(1)},
      {kP, kP, kS},
      {kD, kD, kS},
      {kD, kP, kS},
      {kP, kS, kS},
      {kS, kP, kS},
      {kS, kS, kS},
      {kD, kS, kS},
  };
  return list;
}

// Presets for a device that cannot hold the activations. Between them these few need the least of
// each tier, so only few have to be compiled before a configuration is refused. A split stores the
// activations of the first units, which wait longest.
const std::vector<PlacementPreset>& spilling_presets() {
  static const std::vector<PlacementPreset> list{
      {kD, kD, kD, kP}, {kP, kP, kP, kP},
      {kP, kP, kS, kP}, {kP, kP, kS, {Tier::kStorage, Tier::kPinned, 2}},
      {kS, kS, kS, kP}, {kD, kD, kS, kS},
      {kP, kP, kS, kS}, {kS, kS, kS, kS},
  };
  return list;
}

void apply_fixed(Place wanted, TierShare& share) {
  if (wanted == Place::kAuto) return;
  share = whole(static_cast<Tier>(static_cast<int>(wanted) - static_cast<int>(Place::kDevice)));
}

// An update on the device needs the weights and gradients there.
bool possible(const PlacementPreset& preset) {
  return preset.optimizer.first != Tier::kDevice ||
         (preset.weight.first == Tier::kDevice && preset.gradient.first == Tier::kDevice);
}

}  // namespace

std::vector<PlacementPreset> placement_presets(const config::Config& config) {
  const auto& place = config.memory.place;
  std::vector<PlacementPreset> wanted = presets();
  if (place.activation == Place::kAuto) {
    wanted.insert(wanted.end(), spilling_presets().begin(), spilling_presets().end());
  }
  std::vector<PlacementPreset> list;
  for (PlacementPreset preset : wanted) {
    apply_fixed(place.weight, preset.weight);
    apply_fixed(place.gradient, preset.gradient);
    apply_fixed(place.optimizer, preset.optimizer);
    apply_fixed(place.activation, preset.activation);
    const bool known = std::find(list.begin(), list.end(), preset) != list.end();
    if (possible(preset) && !known) list.push_back(preset);
  }
  return list;
}

std::vector<Tier> spread(const TierShare& share, const schedule::StepModel& model) {
  std::uint64_t total = 0;
  for (const schedule::UnitFootprint& unit : model.units) total += unit.elems;
  const std::uint64_t first_elems = total / 4 * static_cast<std::uint64_t>(share.quarters);
  std::vector<Tier> tiers;
  std::uint64_t seen = 0;
  for (const schedule::UnitFootprint& unit : model.units) {
    seen += unit.elems;
    const bool first = share.quarters == 4 || seen <= first_elems;
    tiers.push_back(first ? share.first : share.rest);
  }
  return tiers;
}

std::vector<Tier> spread_activations(const TierShare& share, std::size_t units) {
  const std::size_t first = ceil_div(units * static_cast<std::size_t>(share.quarters), 4);
  std::vector<Tier> tiers(units, share.rest);
  std::fill_n(tiers.begin(), first, share.first);
  return tiers;
}

}  // namespace sluice::planner
