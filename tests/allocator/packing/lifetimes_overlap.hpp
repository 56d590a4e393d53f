// The plain definition of two lifetimes that are live at one time.
#pragma once

#include "allocator/packing/arena_packing.hpp"

namespace sluice::packing {

inline bool lifetimes_overlap(const Lifetime& a, const Lifetime& b) {
  return a.lower < b.upper && b.lower < a.upper;
}

}  // namespace sluice::packing
