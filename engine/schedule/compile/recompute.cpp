#include "engine/schedule/compile/recompute.hpp"

#include <algorithm>

#include "engine/schedule/compile/step_model.hpp"

namespace sluice::schedule {
namespace {

// parts_of(saved parts): the parts that a unit remakes.
template <typename PartsOf>
Recomputation for_units(const StepModel& model, PartsOf parts_of) {
  Recomputation recompute;
  for (const UnitFootprint& unit : model.units) {
    recompute.units.push_back({unit.recomputable ? parts_of(unit.saved_parts) : 0});
  }
  // Two ways to say "none" would make equal options differ.
  if (!recompute.any()) recompute.units.clear();
  return recompute;
}

}  // namespace

bool Recomputation::any() const {
  return std::any_of(units.begin(), units.end(),
                     [](const UnitRecompute& unit) { return unit.parts != 0; });
}

Recomputation recompute_units(const StepModel& model) {
  return for_units(model, all_parts);
}

Recomputation recompute_parts(const StepModel& model, MadeBy made_by) {
  return for_units(model, [&](const std::vector<SavedPart>& parts) {
    const PartMask mask = parts_made_by(parts, made_by);
    return can_be_remade(parts, mask) ? mask : 0;
  });
}

// The first unit that recomputes names the policy. It is mixed if another unit that recomputes
// would have another name.
RecomputeSummary summarize(const StepModel& model, const Recomputation& recompute) {
  RecomputeSummary summary;
  const auto name_of = [](const std::vector<SavedPart>& parts, PartMask mask) -> std::string {
    if (mask == all_parts(parts)) return "unit";
    if (mask == parts_made_by(parts, MadeBy::kElementwise)) return "selective";
    if (mask == parts_made_by(parts, MadeBy::kAttention)) return "attention";
    return "mixed";
  };
  for (std::size_t at = 0; at < model.units.size(); ++at) {
    const UnitFootprint& unit = model.units[at];
    if (!unit.recomputable) continue;
    ++summary.of;
    const PartMask mask = recompute.parts_of(static_cast<std::int32_t>(at));
    if (mask == 0) continue;
    const std::string name = name_of(unit.saved_parts, mask);
    summary.policy = summary.units == 0 || summary.policy == name ? name : "mixed";
    ++summary.units;
    summary.freed_bytes += mask == all_parts(unit.saved_parts)
                               ? unit.saved_bytes
                               : bytes_of_parts(unit.saved_parts, mask);
  }
  return summary;
}

}  // namespace sluice::schedule
