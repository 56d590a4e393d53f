// The search behind pack_lifetimes, over boxes in compressed time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "allocator/packing/placed_boxes.hpp"

namespace sluice::packing {

struct BoxPacking {
  std::vector<std::uint64_t> offsets_bytes;
  std::uint64_t capacity_bytes = 0;
};

// Boxes live in positions [0, position_count). The search ends as soon as the capacity is at most
// `target_bytes`, or after `work_budget` units of PlacedBoxes::work. It tries at least one greedy
// order, whatever the budget. base_bytes is that of PlacedBoxes. Deterministic.
BoxPacking search_packing(std::span<const Box> boxes, std::int32_t position_count,
                          std::uint64_t target_bytes, std::uint64_t work_budget,
                          std::uint64_t base_bytes = 0);

}  // namespace sluice::packing
