// Units are taken in model order until a tier's share is used up, and never skipped, so that the
// places of several kinds nest: a unit whose optimizer state is on the device has its weights there
// too wherever the shares say so.
#include "engine/planner/bound/plan_steps.hpp"

#include <array>

namespace sluice::planner {

std::vector<Tier> spread_shares(const TierShares& shares, const schedule::StepModel& model) {
  double total = 0;
  for (const schedule::UnitFootprint& unit : model.units) total += static_cast<double>(unit.elems);
  constexpr double kRounding = 1e-6;
  const bool any_stored = shares[2] > kRounding;
  std::array<double, 2> left{(shares[0] + kRounding) * total, (shares[1] + kRounding) * total};
  std::size_t tier = 0;
  std::vector<Tier> tiers;
  for (const schedule::UnitFootprint& unit : model.units) {
    const auto elems = static_cast<double>(unit.elems);
    while (tier < left.size() && elems > left[tier]) ++tier;
    if (tier < left.size()) left[tier] -= elems;
    tiers.push_back(tier == 2 && !any_stored ? Tier::kPinned : static_cast<Tier>(tier));
  }
  return tiers;
}

std::vector<schedule::Recomputation> less_recomputed(const schedule::Recomputation& from) {
  std::vector<std::size_t> remaking;
  for (std::size_t unit = 0; unit < from.units.size(); ++unit) {
    if (from.units[unit].output_run > 0) return {};  // of a segment
    if (from.units[unit].parts != 0) remaking.push_back(unit);
  }
  std::vector<schedule::Recomputation> list;
  for (std::size_t part = 2; part <= 8; part *= 2) {
    const std::size_t kept = remaking.size() / part;
    if (kept == 0) break;
    list.push_back(from);
    for (std::size_t i = remaking.size() - kept; i < remaking.size(); ++i) {
      list.back().units[remaking[i]].parts = 0;
    }
  }
  return list;
}

std::string shape_text(const PlanShape& shape) {
  std::string text =
      shape.order == schedule::ComputeOrder::kUnit ? "order unit" : "order microbatch";
  switch (shape.update) {
    case schedule::UpdatePlacement::kAfterBackward:
      text += ", update after backward";
      break;
    case schedule::UpdatePlacement::kInBackward:
      text += ", update in backward";
      break;
    case schedule::UpdatePlacement::kNextForward:
      text += ", update in the next forward";
      break;
    case schedule::UpdatePlacement::kSpeculative:
      text += ", speculative update";
      break;
  }
  return text;
}

}  // namespace sluice::planner
