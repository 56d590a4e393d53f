// The values that a step makes again in place of keeping them: by unit, and by saved part.
//
// A unit's backward visit begins with a Recompute of its parts, while the window of weights is
// there for the visit anyway. The parts die with the visit. All parts of a unit together are its
// forward pass once more, without the operations that only make its output.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/schedule/saved_part.hpp"

namespace sluice::schedule {

struct StepModel;

struct UnitRecompute {
  PartMask parts = 0;  // made again before backward reads them
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
  bool any() const;
  bool operator==(const Recomputation&) const = default;
};

// Units that cannot be recomputed keep all of their parts in each of these.
// Recomputes units as a whole.
Recomputation recompute_units(const StepModel& model);
// Remakes the parts that operations of one kind make.
Recomputation recompute_parts(const StepModel& model, MadeBy made_by);

// The recomputation of a step in words and figures, for reports.
struct RecomputeSummary {
  std::string policy = "none";    // "none", "unit", "selective", "attention" or "mixed"
  std::int32_t units = 0;         // that make anything again
  std::int32_t of = 0;            // that could
  std::uint64_t freed_bytes = 0;  // of saved parts of one micro-batch that are not kept
};
RecomputeSummary summarize(const StepModel& model, const Recomputation& recompute);

}  // namespace sluice::schedule
