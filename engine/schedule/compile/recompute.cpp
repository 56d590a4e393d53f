// The choices by policy, and the rules that every choice keeps to. A unit's parts are a mask, so a
// policy is one mask for each unit that can be recomputed. Segments are walked once from the first
// unit to the last, as their forward passes run.
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
    recompute.units.push_back({unit.recomputable ? parts_of(unit.saved_parts) : 0, false});
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

Recomputation recompute_segments(const StepModel& model, std::int32_t length) {
  Recomputation recompute = recompute_units(model);
  std::size_t last_begin = 0;  // of the segment that is being walked
  std::int32_t within = 0;     // units of it so far
  for (std::size_t unit = 0; unit < recompute.units.size(); ++unit) {
    if (!model.units[unit].recomputable) {
      within = 0;
      continue;
    }
    if (within == 0) last_begin = unit;
    const bool run_goes_on = unit + 1 < model.units.size() && model.units[unit + 1].recomputable;
    recompute.units[unit].drops_output = run_goes_on && within + 1 < length;
    within = recompute.units[unit].drops_output ? within + 1 : 0;
  }
  for (std::size_t unit = last_begin; unit < recompute.units.size(); ++unit) {
    recompute.units[unit] = {};
  }
  if (!recompute.any()) recompute.units.clear();
  return recompute;
}

// The least length whose square is not below the number of units.
std::int32_t sqrt_segment_length(const StepModel& model) {
  const auto units = std::count_if(model.units.begin(), model.units.end(),
                                   [](const UnitFootprint& unit) { return unit.recomputable; });
  std::int32_t length = 1;
  while (static_cast<std::ptrdiff_t>(length) * length < units) ++length;
  return length;
}

bool is_possible(const StepModel& model, const Recomputation& recompute) {
  if (!recompute.units.empty() && recompute.units.size() != model.units.size()) return false;
  for (std::size_t at = 0; at < recompute.units.size(); ++at) {
    const UnitRecompute& unit = recompute.units[at];
    const std::vector<SavedPart>& parts = model.units[at].saved_parts;
    if (unit.parts != 0 && !model.units[at].recomputable) return false;
    if (!can_be_remade(parts, unit.parts)) return false;
    if (!unit.drops_output) continue;
    const bool next_whole =
        at + 1 < recompute.units.size() && model.units[at + 1].recomputable &&
        recompute.units[at + 1].parts == all_parts(model.units[at + 1].saved_parts);
    if (unit.parts != all_parts(parts) || !next_whole) return false;
  }
  return true;
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
  // Units of a segment count as the segment's length says. A shorter one at the end of a run is
  // part of the policy.
  std::int32_t segment = 0;
  std::int32_t length = 0;
  for (std::size_t at = 0; at < recompute.units.size(); ++at) {
    segment = recompute.units[at].drops_output ? segment + 1 : 0;
    length = std::max(length, segment + 1);
  }
  for (std::size_t at = 0; at < model.units.size(); ++at) {
    const UnitFootprint& unit = model.units[at];
    if (!unit.recomputable) continue;
    ++summary.of;
    const PartMask mask = recompute.parts_of(static_cast<std::int32_t>(at));
    if (mask == 0) continue;
    const bool whole = mask == all_parts(unit.saved_parts);
    const std::string name =
        whole && length > 1 ? "every:" + std::to_string(length) : name_of(unit.saved_parts, mask);
    summary.policy = summary.units == 0 || summary.policy == name ? name : "mixed";
    ++summary.units;
    summary.freed_bytes += mask == all_parts(unit.saved_parts)
                               ? unit.saved_bytes
                               : bytes_of_parts(unit.saved_parts, mask);
  }
  return summary;
}

}  // namespace sluice::schedule
