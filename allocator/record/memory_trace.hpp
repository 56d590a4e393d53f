// What an allocator was asked to do, in order: the one record that snapshots, replays and plans
// share. An importer makes it from a file (torch_snapshot.hpp, memory_trace_csv.hpp), a recorder
// from a running caller, a generator from a seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/memory_kinds.hpp"

namespace sluice::record {

// One thing that happened, as an allocator records it. The words are PyTorch's, but kStep and
// kFlush.
enum class MemoryAction : std::uint8_t {
  kAlloc,
  kFreeRequested,  // the caller gave it back; uses on other streams may still be queued
  kFreeCompleted,  // those have finished: the memory may be reused
  kSegmentAlloc,   // the allocator obtained a segment
  kSegmentFree,
  kSegmentMap,  // pages of an expandable segment
  kSegmentUnmap,
  kStep,         // the caller began an iteration
  kOutOfMemory,  // a request failed; bytes: the request
  kSnapshot,
  kFlush,  // the caller asked for all cached memory, where no segments are told of
};

struct MemoryEvent {
  MemoryAction action = MemoryAction::kAlloc;
  Category category = Category::kExternal;
  std::uint16_t pool = 0;    // of an allocation where no segments are told of: see SnapshotSegment
  std::uint32_t name = 0;    // index into MemorySnapshot::names: a site or tag; 0: ""
  std::uint64_t stream = 0;  // the caller's opaque name of a stream
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;  // as requested, before any rounding
  std::int64_t time_ns = 0;
};

enum class BlockState : std::uint8_t { kAllocated, kPendingFree, kFree };

struct SnapshotBlock {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;            // as the allocator rounded them
  std::uint64_t requested_bytes = 0;  // 0 where free
  BlockState state = BlockState::kFree;
  Category category = Category::kExternal;
  std::uint32_t name = 0;
  bool untold = false;  // no event tells of it: AllocationRequest::untold. In no file
};

struct SnapshotSegment {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t stream = 0;
  bool is_small = false;  // holds blocks of at most 1 MiB
  bool is_expandable = false;
  std::uint64_t pool = 0;             // 0: the default pool; else a private one (graphs)
  std::vector<SnapshotBlock> blocks;  // in order of address, without gaps
};

// The state of an allocator at one moment, and what led to it: the last events, oldest first,
// possibly cut at the front.
struct MemorySnapshot {
  std::vector<SnapshotSegment> segments;
  std::vector<MemoryEvent> events;
  std::vector<std::string> names{""};
  std::int32_t device = 0;
  // Settings of the allocator that recorded it, where they change what it does; PyTorch's names
  // and defaults.
  bool expandable_segments = false;
  std::uint64_t max_split_bytes = UINT64_MAX;
  std::uint64_t roundup_power2_divisions = 0;  // 0: off; where it differs by size, the table below
  std::vector<std::uint64_t> roundup_divisions_by_power;  // [log2(bytes >> 20)], empty: the same
};

// The same as a replay needs it: allocations by dense index, operations on them.
struct TraceAllocation {
  std::uint64_t bytes = 0;
  std::uint64_t stream = 0;
  std::uint64_t pool = 0;
  std::uint64_t address = 0;          // as recorded; 0: not known
  std::uint64_t segment_address = 0;  // of the segment that was obtained for it; 0: none was
  Category category = Category::kExternal;
  std::uint32_t name = 0;
};

enum class TraceAction : std::uint8_t {
  kAlloc,
  kFree,           // its stream may reuse the memory at once
  kFreePending,    // other streams still use it, until kFreeCompleted
  kFreeCompleted,  // ends kFreePending
  kStep,           // an iteration begins
  kFlush,          // the caller asked for all cached memory to be given back
};

struct TraceOperation {
  TraceAction action = TraceAction::kAlloc;
  std::uint32_t allocation = 0;  // index; 0 for kStep and kFlush
};

struct MemoryTrace {
  std::string source;  // the file, for messages
  std::string format;  // "torch", "rmm", "sluice", "generated"
  std::vector<TraceAllocation> allocations;
  std::vector<TraceOperation> operations;
  std::vector<std::string> names{""};
  // What was held before the first operation (a record that was cut at the front). Its blocks are
  // allocations too: block b of segment s that is not free is initial_ids[s][b], with no kAlloc.
  std::vector<SnapshotSegment> initial_segments;
  std::vector<std::vector<std::uint32_t>> initial_ids;  // UINT32_MAX where free
  // Of the allocator that recorded it; 0: not recorded.
  std::uint64_t recorded_peak_reserved_bytes = 0;
  std::uint64_t recorded_end_reserved_bytes = 0;
  // It gave back a part of its cache, not all of it, to serve requests: its device was full. It
  // does the same again, at the same requests, where it has recorded_peak_reserved_bytes: what
  // failed then would have passed them, and what did not never did.
  bool recorded_trimming = false;
  bool expandable_segments = false;
  std::uint64_t max_split_bytes = UINT64_MAX;
  std::uint64_t roundup_power2_divisions = 0;
  std::vector<std::uint64_t> roundup_divisions_by_power;
};

// Requested bytes of what is held before the first operation and not freed by the caller.
std::uint64_t initial_live_bytes(const MemoryTrace& trace);

// The largest sum of requested bytes held at once; blocks that wait for other streams count until
// they are freed by the caller.
std::uint64_t peak_live_bytes(const MemoryTrace& trace);

// Throws InternalError where an operation names no allocation, frees twice, or allocates twice.
void check_trace(const MemoryTrace& trace);

}  // namespace sluice::record
