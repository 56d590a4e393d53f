// A part of an allocator's statistics that one lock guards: a thread's cache counts what it served,
// a stream's pool what it did itself.
#pragma once

#include <array>
#include <cstdint>

#include "base/memory_kinds.hpp"

namespace sluice::allocator {

struct AllocationCounts {
  // Negative where one frees what another allocated.
  std::array<std::int64_t, kCategoryCount> live_by_category{};
  std::int64_t unsettled_bytes = 0;  // not yet in the allocator's total
  std::uint64_t allocation_count = 0;
  std::uint64_t free_count = 0;
};

}  // namespace sluice::allocator
