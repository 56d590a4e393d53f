// The values that a step recomputes in place of keeping them: by unit, and by saved part.
//
// A unit's backward visit begins with a Recompute of its parts, while the window of weights is
// there for the visit anyway. The parts die with the visit. All parts of a unit together are its
// forward pass once more, without the operations that only make its output.
//
// A segment is a run of units that are recomputed whole, of which only the last keeps its output.
// The segment's forward passes run again from its input before its backward passes begin. A segment
// may be cut into shorter ones in the same way: its passes then run again to the input of the last
// of them, and those in front run once more later.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/schedule/saved_part.hpp"

namespace sluice::schedule {

struct StepModel;

// Run 0 of a unit is its forward pass, run 1 the first pass that repeats it, and so on.
struct UnitRecompute {
  PartMask parts = 0;  // recomputed before backward reads them
  // The run whose output stays until backward has read it. The output of an earlier run is dropped
  // when the next unit has read it. Beyond 0, all parts of this unit and of the next one are made
  // again too.
  std::int32_t output_run = 0;
  // The run that recomputes the parts, which is the last one. Beyond 1, earlier runs only make the
  // output.
  std::int32_t parts_run = 1;
  bool operator==(const UnitRecompute&) const = default;
};

struct Recomputation {
  std::vector<UnitRecompute> units;  // empty: none of any unit

  PartMask parts_of(std::int32_t unit) const {
    return units.empty() ? 0 : units[static_cast<std::size_t>(unit)].parts;
  }
  bool recomputes(std::int32_t unit) const { return parts_of(unit) != 0; }
  bool remakes(std::int32_t unit, std::size_t part) const {
    return (parts_of(unit) & part_bit(part)) != 0;
  }
  std::int32_t output_run(std::int32_t unit) const {
    return unit < 0 || units.empty() ? 0 : units[static_cast<std::size_t>(unit)].output_run;
  }
  bool drops_output(std::int32_t unit) const { return output_run(unit) > 0; }
  bool any() const;
  bool operator==(const Recomputation&) const = default;
};

// Units that cannot be recomputed keep all of their parts in each of these.
// Recomputes units as a whole.
Recomputation recompute_units(const StepModel& model);
// Recomputes the parts that operations of one kind make.
Recomputation recompute_parts(const StepModel& model, MadeBy made_by);

// Cuts each run of units that can be recomputed into segments of `length` units. The last segment
// of the model keeps everything: its backward passes begin where its forward passes end.
Recomputation recompute_segments(const StepModel& model, std::int32_t length);
// The length of about the square root of the number of units, at which a step holds as many
// segment inputs as a segment has units.
std::int32_t sqrt_segment_length(const StepModel& model);

struct UnitRun {
  std::int32_t unit = 0;
  std::int32_t run = 0;
  bool operator==(const UnitRun&) const = default;
};
// The passes that run again right before the backward passes of each unit, by unit, in order.
std::vector<std::vector<UnitRun>> repeated_passes(const Recomputation& recompute);
// Whether the units and parts can be recomputed as `recompute` says.
bool is_possible(const StepModel& model, const Recomputation& recompute);

// The recomputation of a step in words and figures, for reports.
struct RecomputeSummary {
  // "none", "unit", "selective", "attention", "every:K", "segments" of several lengths, "nested"
  // segments or "mixed".
  std::string policy = "none";
  std::int32_t units = 0;         // that recompute anything
  std::int32_t of = 0;            // that could
  std::uint64_t freed_bytes = 0;  // of saved parts of one micro-batch that are not kept
};
RecomputeSummary summarize(const StepModel& model, const Recomputation& recompute);

}  // namespace sluice::schedule
