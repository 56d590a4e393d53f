// Offsets within a given capacity by exhaustive search: for instances that orders of best fit miss.
//
// A search over a whole timeline drowns in choices that have nothing to do with each other: regions
// far apart in time are decided in turns, so the one that is hard is met again for every way of
// placing the others. So, beside the whole, windows are solved: from the fullest position outwards,
// a few boxes at a time, with those already placed fixed; where that fails, those nearest to the
// growing edge are set free again, twice as far each time. Window widths and orders of ties take
// turns with doubling budgets, since each is quick on other instances.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "allocator/packing/placed_boxes.hpp"
#include "allocator/packing/skyline_search.hpp"

namespace sluice::packing {

struct ExactPacking {
  SkylineOutcome outcome = SkylineOutcome::kGaveUp;
  std::vector<std::uint64_t> offsets_bytes;  // kPacked: by box
};

// Boxes live in positions [0, position_count); durations: of each box in uncompressed time, which
// orders ties. Gives up after about `work_budget` looks at a position of a box (some 4 ns each),
// and at once where the capacity passes 2^29 times the greatest divisor that the sizes have in
// common. Deterministic.
ExactPacking pack_exactly(std::span<const Box> boxes, std::span<const std::uint64_t> durations,
                          std::int32_t position_count, std::uint64_t capacity_bytes,
                          std::uint64_t work_budget);

}  // namespace sluice::packing
