// The choices by policy, and the rules that every choice keeps to. A unit's parts are a mask, so a
// policy is one mask for each unit that can be recomputed. Segments are walked once from the first
// unit to the last, as their forward passes run, and repeated passes from the last to the first, as
// backward meets them.
#include "engine/schedule/compile/recompute.hpp"

#include <algorithm>

#include "engine/schedule/compile/step_model.hpp"

namespace sluice::schedule {
namespace {

// parts_of(saved parts): the parts that a unit recomputes.
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

// Whether each unit's last run is the one that makes its parts, and each unit's input is there when
// its backward passes begin.
bool runs_match(const Recomputation& recompute) {
  const std::vector<std::vector<UnitRun>> repeated = repeated_passes(recompute);
  std::vector<std::int32_t> runs(recompute.units.size());
  const auto matches = [&](std::size_t unit) {
    return runs[unit] == (recompute.units[unit].parts == 0 ? 0 : recompute.units[unit].parts_run);
  };
  for (std::size_t unit = runs.size(); unit-- > 0;) {
    for (const UnitRun& pass : repeated[unit]) runs[static_cast<std::size_t>(pass.unit)] = pass.run;
    if (!matches(unit)) return false;
    if (unit > 0 && recompute.units[unit - 1].output_run > runs[unit - 1]) return false;
  }
  for (std::size_t unit = 0; unit < runs.size(); ++unit) {
    if (!matches(unit)) return false;
  }
  return true;
}

// The name of a choice with segments. A shorter one at the end of a run of units is part of
// "every:K".
std::string name_of_segments(const StepModel& model, const Recomputation& recompute) {
  std::int32_t within = 0;
  std::int32_t longest = 0;
  std::int32_t ended = 0;  // the length of the segment before
  bool equal = true;
  for (std::size_t at = 0; at < recompute.units.size(); ++at) {
    const UnitRecompute& unit = recompute.units[at];
    if (unit.parts_run > 1 || unit.output_run > 1) return "nested";
    if (unit.parts == 0) continue;
    ++within;
    if (unit.output_run > 0) continue;
    longest = std::max(longest, within);
    const bool run_ends = at + 1 == recompute.units.size() || !model.units[at + 1].recomputable;
    equal = equal && (ended == 0 || (run_ends ? within <= ended : within == ended));
    ended = run_ends ? 0 : within;
    within = 0;
  }
  return equal ? "every:" + std::to_string(longest) : "segments";
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
    const bool drops = run_goes_on && within + 1 < length;
    recompute.units[unit].output_run = drops ? 1 : 0;
    within = drops ? within + 1 : 0;
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

// Goes back through the units and counts the runs of each. A unit that lacks its parts is run again
// from the nearest output that is there. All units of such a run have run equally often before,
// since outputs that are there stay.
std::vector<std::vector<UnitRun>> repeated_passes(const Recomputation& recompute) {
  const auto count = static_cast<std::int32_t>(recompute.units.size());
  std::vector<std::vector<UnitRun>> before(recompute.units.size());
  std::vector<std::int32_t> runs(recompute.units.size());
  const auto at = [](std::int32_t unit) { return static_cast<std::size_t>(unit); };
  for (std::int32_t unit = count - 1; unit >= 0; --unit) {
    if (!recompute.recomputes(unit) || runs[at(unit)] >= recompute.units[at(unit)].parts_run) {
      continue;
    }
    std::int32_t begin = unit;
    while (begin > 0 && recompute.output_run(begin - 1) > runs[at(begin - 1)]) --begin;
    for (std::int32_t again = begin; again <= unit; ++again) {
      before[at(unit)].push_back({again, ++runs[at(again)]});
    }
  }
  return before;
}

bool is_possible(const StepModel& model, const Recomputation& recompute) {
  if (recompute.units.empty()) return true;
  if (recompute.units.size() != model.units.size()) return false;
  const auto whole = [&](std::size_t at) {
    return at < recompute.units.size() && model.units[at].recomputable &&
           recompute.units[at].parts == all_parts(model.units[at].saved_parts);
  };
  for (std::size_t at = 0; at < recompute.units.size(); ++at) {
    const UnitRecompute& unit = recompute.units[at];
    if (unit.parts != 0 && !model.units[at].recomputable) return false;
    if (!can_be_remade(model.units[at].saved_parts, unit.parts)) return false;
    if (unit.output_run < 0 || unit.parts_run < 1) return false;
    if (unit.output_run > 0 && !(whole(at) && whole(at + 1))) return false;
    if (unit.parts_run > 1 && !whole(at)) return false;
  }
  // The output of a stage's last unit goes to another rank, which does not recompute it.
  for (std::size_t stage = 0; stage + 1 < model.pipeline.units.size(); ++stage) {
    if (recompute.drops_output(model.pipeline.units[stage].end - 1)) return false;
  }
  return runs_match(recompute);
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
  const bool drops = std::any_of(recompute.units.begin(), recompute.units.end(),
                                 [](const UnitRecompute& unit) { return unit.output_run > 0; });
  const std::string segments = drops ? name_of_segments(model, recompute) : "";
  for (std::size_t at = 0; at < model.units.size(); ++at) {
    const UnitFootprint& unit = model.units[at];
    if (!unit.recomputable) continue;
    ++summary.of;
    const PartMask mask = recompute.parts_of(static_cast<std::int32_t>(at));
    if (mask == 0) continue;
    const bool whole = mask == all_parts(unit.saved_parts);
    const std::string name = whole && drops ? segments : name_of(unit.saved_parts, mask);
    summary.policy = summary.units == 0 || summary.policy == name ? name : "mixed";
    ++summary.units;
    summary.freed_bytes += mask == all_parts(unit.saved_parts)
                               ? unit.saved_bytes
                               : bytes_of_parts(unit.saved_parts, mask);
  }
  return summary;
}

}  // namespace sluice::schedule
