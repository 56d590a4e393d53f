// Where the iterations of a recorded caller begin and end, and whether they ask for the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocator/record/memory_trace.hpp"

namespace sluice::record {

struct IterationRange {
  std::size_t begin = 0;  // operations [begin, end)
  std::size_t end = 0;
};

// Two iterations beside each other.
struct IterationMatch {
  // The same actions in the same order, allocations of the same bytes, stream and pool, and frees
  // of the same allocation, counted from where the iteration begins (what an earlier iteration left
  // counts backwards).
  bool is_exact = false;
  // Of the larger one's allocations, those that have a partner of the same bytes, stream and pool
  // in the other, whatever the order.
  double allocation_share = 0.0;
};

enum class IterationSource : std::uint8_t { kNone, kMarks, kRepetition };

struct Iterations {
  IterationSource source = IterationSource::kNone;
  std::vector<IterationRange> ranges;   // whole iterations, in order, each where the last ended
  std::vector<IterationMatch> matches;  // [i]: ranges[i] and ranges[i + 1]
  // The smallest d, at most 8 and half the number of ranges, for which each iteration of the later
  // half of the record has at least 99% of its allocations in common with the one d before; 0:
  // none. 2: A and B alternate.
  std::uint32_t repeats_after = 0;
};

// kStep marks, where there are two or more: an iteration is from one to the next; from the last to
// the end it is whole where it makes at least 90% of the allocations of the smallest before it.
// Else by repetition, as iteration_period.hpp says; none where nothing repeats.
Iterations find_iterations(const MemoryTrace& trace);

IterationMatch match_iterations(const MemoryTrace& trace, const IterationRange& a,
                                const IterationRange& b);

}  // namespace sluice::record
