// Converts a recorded snapshot into the operations that a replay repeats.
#pragma once

#include <cstdint>
#include <string>

#include "allocator/record/memory_trace.hpp"

namespace sluice::record {

// Counts of events that no correct allocator would write.
struct TraceDefects {
  // Events and blocks that contradict others: a block is freed twice or allocated over another,
  // memory lies outside all segments, segments overlap.
  std::uint64_t contradictions = 0;
  std::uint64_t unknown_frees = 0;  // frees of addresses that were not allocated; left out
};

// Undoes all events from the end state to find the memory held before the first event
// (snapshot_rollback.hpp). Then follows the events; each allocation gets an index of its own.
//
// - free_requested followed at once by free_completed becomes kFree. Otherwise the two become
//   kFreePending and kFreeCompleted. If a record leaves out one of them, the other becomes kFree.
// - Consecutive frees of segments become one kFlush, whether the caller emptied the cache or a
//   failed allocation did. A replay of the same policy then holds the same memory. There is no
//   kFlush if more idle memory stayed than was freed, or any under a limit to splitting: then the
//   allocator trimmed its cache by itself, and recorded_trimming is set.
// - Consecutive frees of a private pool's segments become one kReleasePool.
// - The pool of an allocation is that of its event or, in older records, of its segment if the end
//   of the record knows it, else 0.
// - A failed request becomes kRefused.
// - A block that was allocated before the record has the name and category of its end.
//
// Accepts any record; the result is sound (each free ends an allocation that is held). InputError
// for more than 2^32 - 2 allocations, and if more than kMostHeldBytes are held at once. Sets
// `defects` if it is not null.
MemoryTrace trace_of(const MemorySnapshot& snapshot, std::string source, std::string format,
                     TraceDefects* defects = nullptr);

}  // namespace sluice::record
