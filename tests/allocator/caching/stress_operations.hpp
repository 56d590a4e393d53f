// How long the seeded sequences of this folder are.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

namespace sluice::allocator {

// SLUICE_STRESS_OPERATIONS where it is set: for each test, all of its seeds and threads together
// (within a factor of two). Otherwise a count that fits a run under a sanitizer.
inline std::uint64_t stress_operations(std::uint64_t usual_count) {
  const char* const text = std::getenv("SLUICE_STRESS_OPERATIONS");
  return text == nullptr ? usual_count : std::stoull(text);
}

}  // namespace sluice::allocator
