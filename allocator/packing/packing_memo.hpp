// Packings that were searched before, for callers that ask for many schedules which are nearly
// alike.
//
// Steps that differ in their host transfers alone often have the same device buffers, in the same
// order. A search is a pure function, so its answer for them is the same too.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <vector>

#include "allocator/packing/packing_search.hpp"

namespace sluice::packing {

// Not for use by two threads at once.
class PackingMemo {
 public:
  // As search_packing.
  BoxPacking search(std::span<const Box> boxes, std::int32_t position_count,
                    std::uint64_t target_bytes, std::uint64_t work_budget,
                    std::uint64_t base_bytes);
  // The searches that were answered from memory.
  std::uint64_t hits() const { return hits_; }

 private:
  struct Known {
    std::uint64_t hash = 0;
    std::vector<Box> boxes;
    std::uint64_t target_bytes = 0, work_budget = 0, base_bytes = 0;
    BoxPacking packing;
  };
  std::list<Known> known_;  // the latest use first
  std::uint64_t hits_ = 0;
};

// Equal lists have equal hashes; others rarely do.
std::uint64_t hash_of(std::span<const Box> boxes);

}  // namespace sluice::packing
