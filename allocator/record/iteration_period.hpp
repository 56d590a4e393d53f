// Finds the period of a record without marks.
#pragma once

#include <vector>

#include "allocator/record/iterations.hpp"

namespace sluice::record {

// A distance P, counted in allocations, is a period of the record's end if at least 99% of the
// allocations there, by count and by bytes, have a like allocation P before. The end is at least P
// long. Two allocations are alike if they have the same bytes, stream and pool, within a run of 8
// such pairs, and lifetimes in the same or neighbouring powers of two, in allocations. A lifetime
// that the record's end cuts off is like any other. P may vary by 2% and by up to 8 allocations, so
// that a few allocations that come every n iterations shift nothing.
//
// Of the periods that cover within 10% of the longest end, the shortest is taken. A layer repeats
// only within an iteration, and a micro-batch only up to the optimizer's step, so both cover less.
// An iteration begins where least memory is live, among the runs that recur each P. No range
// contains the operations before the repeating end (a first iteration that differs, or one that is
// cut at its front), nor an iteration that the end cuts off. O(n log n).
std::vector<IterationRange> find_repeating_iterations(const MemoryTrace& trace);

}  // namespace sluice::record
