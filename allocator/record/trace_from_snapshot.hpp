// From a recorded snapshot to the operations that a replay repeats.
#pragma once

#include <cstdint>
#include <string>

#include "allocator/record/memory_trace.hpp"

namespace sluice::record {

// What of a record was not as an allocator would write it.
struct TraceDefects {
  // Events and blocks that others deny: a block freed twice or allocated over another, memory
  // outside all segments, segments that overlap.
  std::uint64_t contradictions = 0;
  std::uint64_t unknown_frees = 0;  // of what nothing had allocated; left out
};

// What was held before the first event is found by undoing all events from the end state
// (snapshot_rollback.hpp); then the events are followed, each allocation with an index of its own.
//
// - free_requested with free_completed right behind it is kFree, otherwise kFreePending and
//   kFreeCompleted; a record that leaves out one of the two words has kFree for the other.
// - Segments given back in a row are one kFlush, whether the caller asked or an allocation failed:
//   a replay of the same policy then holds what was held. Where more idle memory stayed than went,
//   or any under a limit to splitting, the allocator trimmed itself (garbage collection, memory
//   short), and there is none; recorded_trimming says so.
// - pool is that of the segment around an allocation where the end of the record knows it, else 0.
// - A block whose allocation is before the record has the name and category of its end.
//
// Never fails on what a record holds: check_trace(result) passes. InputError past 2^32 - 2
// allocations. `defects`: where given, set to what was found.
MemoryTrace trace_of(const MemorySnapshot& snapshot, std::string source, std::string format,
                     TraceDefects* defects = nullptr);

}  // namespace sluice::record
