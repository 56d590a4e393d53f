// Finds the period of a record without marks.
#pragma once

#include <vector>

#include "allocator/record/iterations.hpp"

namespace sluice::record {

// P, counted in allocations, is a period if at least 99% of the allocations at the end of the
// record, by count and by bytes, match the allocation P earlier. That end must be at least P long.
// Two allocations match if bytes, stream and pool are equal for all eight allocations of a run, and
// if their lifetimes fall in the same or neighbouring powers of two. A lifetime that is cut off by
// the record's end matches every lifetime. The distance may differ from P by 2% plus 8 allocations,
// so a few allocations that come only every n iterations do no harm.
//
// Among the candidates whose matching end is at least 90% as long as the longest one, give or take
// a period, the shortest period wins. A multiple of it wins only if it explains ten times as many
// large allocations. Layers and micro-batches repeat only within a step, so their matching ends are
// shorter.
//
// An iteration starts at the recurring run of allocations with the least live memory before it. No
// range contains the operations before the matching end (a first iteration that differs, or one
// that is cut at its front), nor an iteration that the record's end cuts off. O(n log n).
std::vector<IterationRange> find_repeating_iterations(const MemoryTrace& trace);

}  // namespace sluice::record
