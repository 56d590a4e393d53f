// The part of an allocator's statistics that one lock guards. Each thread's cache and each stream's
// pool counts the calls that it served.
#pragma once

#include <array>
#include <cstdint>

#include "base/memory_kinds.hpp"

namespace sluice::allocator {

struct AllocationCounts {
  // May be negative: another part may have counted the allocation.
  std::array<std::int64_t, kCategoryCount> live_by_category{};
  std::int64_t unflushed_bytes = 0;  // not yet added to the allocator's total
  std::uint64_t allocation_count = 0;
  std::uint64_t free_count = 0;
};

}  // namespace sluice::allocator
