// Finds offsets within a given capacity by exhaustive search, for instances on which orders fail.
//
// A search over the whole timeline drowns in independent choices: it decides regions that are far
// apart in time in turns, so it meets the hard region again for every placement of the others.
// Therefore the search also solves windows. A window grows outwards from a position of the largest
// live sum and takes in a few boxes at a time, while the boxes already placed stay fixed. If that
// fails, the boxes nearest to the growing edge are set free again, in growing distances. Ways of
// growing and orders of ties take turns with doubling budgets, because each is quick on other
// instances.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "allocator/packing/placed_boxes.hpp"
#include "allocator/packing/skyline_search.hpp"

namespace sluice::packing {

struct ExactPacking {
  SkylineOutcome outcome = SkylineOutcome::kGaveUp;
  std::vector<std::uint64_t> offsets_bytes;  // by box; empty unless kPacked
};

// Boxes live in positions [0, position_count). `durations` are their lifetimes in uncompressed
// time, by which ties are ordered. The search gives up after it has looked about `work_budget`
// times at a position of a box, some 4 ns each. It gives up at once if the capacity exceeds 2^29
// times the greatest common divisor of the sizes. Deterministic.
ExactPacking pack_exactly(std::span<const Box> boxes, std::span<const std::uint64_t> durations,
                          std::int32_t position_count, std::uint64_t capacity_bytes,
                          std::uint64_t work_budget);

}  // namespace sluice::packing
