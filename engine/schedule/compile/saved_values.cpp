// One walk over the parts in order: a part joins the value before it if both wait in the same tier,
// serve the same half of backward, and are both kept or both recomputed. Otherwise it begins a new
// value.
#include "engine/schedule/compile/saved_values.hpp"

namespace sluice::schedule {

std::vector<SavedValue> saved_values(const StepModel& model, const StepOptions& options,
                                     std::int32_t unit) {
  const UnitFootprint& footprint = model.units[static_cast<std::size_t>(unit)];
  const Placement& placement = options.placement;
  if (footprint.saved_bytes == 0) return {};
  if (footprint.saved_parts.empty()) {
    return {{{0, footprint.saved_bytes},
             placement.saved_of(unit, 0),
             SavedFor::kBoth,
             part_bit(0),
             options.recompute.remakes(unit, 0)}};
  }
  std::vector<SavedValue> values;
  std::uint64_t begin = 0;
  for (std::size_t part = 0; part < footprint.saved_parts.size(); ++part) {
    const SavedPart& saved = footprint.saved_parts[part];
    const Tier tier = placement.saved_of(unit, part);
    const bool remade = options.recompute.remakes(unit, part);
    const std::uint64_t end = begin + saved.bytes;
    const bool joins = !values.empty() && values.back().tier == tier &&
                       values.back().used_by == saved.used_by && values.back().remade == remade;
    if (joins) {
      values.back().bytes.end = end;
      values.back().parts |= part_bit(part);
    } else {
      values.push_back({{begin, end}, tier, saved.used_by, part_bit(part), remade});
    }
    begin = end;
  }
  return values;
}

}  // namespace sluice::schedule
