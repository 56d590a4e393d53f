// The heap of the whole test program: operator new counts live bytes and their peak.
#pragma once

#include <cstdint>

namespace sluice::testing {

std::uint64_t live_heap_bytes();
// Forgets the peak so far.
void restart_heap_peak();
std::uint64_t heap_peak_bytes();

// Runs `work` and returns the most heap bytes that lived at once, beyond those at its start.
template <class Work>
std::uint64_t heap_peak_of(const Work& work) {
  const std::uint64_t before = live_heap_bytes();
  restart_heap_peak();
  work();
  return heap_peak_bytes() - before;
}

}  // namespace sluice::testing
