// Plain definitions: two lifetimes that are live at one time, and the most bytes that ever are.
#pragma once

#include <algorithm>
#include <vector>

#include "allocator/packing/arena_packing.hpp"

namespace sluice::packing {

inline bool lifetimes_overlap(const Lifetime& a, const Lifetime& b) {
  return a.lower < b.upper && b.lower < a.upper;
}

// Looks at every position; a sweep must find the same.
inline std::uint64_t most_live_bytes(const std::vector<Lifetime>& lifetimes) {
  std::uint64_t most = 0;
  for (const Lifetime& at : lifetimes) {
    std::uint64_t live = 0;
    for (const Lifetime& one : lifetimes) {
      if (one.lower <= at.lower && at.lower < one.upper) live += one.bytes;
    }
    most = std::max(most, live);
  }
  return most;
}

}  // namespace sluice::packing
