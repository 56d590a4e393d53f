// The period of a record without marks.
#pragma once

#include <vector>

#include "allocator/record/iterations.hpp"

namespace sluice::record {

// A distance P, counted in allocations, is a period of the record from some allocation to its end
// where at least 99% of the allocations there, by count and by bytes, have their like P before, and
// P allocations or more do. Like: the same bytes, stream and pool, within a run of 8 that are, and
// a like class of lifetime (its power of two, in allocations, or a neighbouring one; what the
// record's end cuts off is like any). P may vary by 2% (and by up to 8 allocations), so that a few
// that come every n iterations shift nothing. Of the distances whose repeating part comes within
// 10% of the longest, the shortest is taken: a layer repeats only within an iteration, a
// micro-batch only up to the optimizer's step. An iteration begins where least is live among the
// runs that recur each P. What comes before the repeating part (a first iteration that differs, a
// front cut off within an iteration) is in no range, nor is an iteration that the end cuts off. O(n
// log n).
std::vector<IterationRange> find_repeating_iterations(const MemoryTrace& trace);

}  // namespace sluice::record
