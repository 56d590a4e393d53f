// Finds where the iterations of a recorded caller begin and end, and whether they are alike.
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

enum class IterationSource : std::uint8_t { kNone, kMarks, kRepetition };

struct Iterations {
  IterationSource source = IterationSource::kNone;
  std::vector<IterationRange>
      ranges;  // whole iterations, in order; each begins where the last ended
  // The smallest d with which iterations repeat: in the later half of the record, each has at least
  // 99% of its allocations in common with the one d before, by bytes, stream and pool, in any
  // order. It is at most 8 and half the number of ranges. 2 means that A and B alternate; 0 that
  // none repeat.
  std::uint32_t repeats_after = 0;
};

// If the trace has two or more kStep marks, an iteration goes from one mark to the next. The part
// after the last mark is an iteration, too, if it makes at least 90% of the allocations of the
// smallest one before. Without marks, iterations are found by repetition (iteration_period.hpp).
Iterations find_iterations(const MemoryTrace& trace);

}  // namespace sluice::record
