// The calls that an allocator received, in order. Snapshots, replays and plans share this record.
// An importer makes it from a file (torch_snapshot.hpp, memory_trace_csv.hpp), a recorder from a
// running caller, a generator from a seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/memory_kinds.hpp"

namespace sluice::record {

// No address space is larger: 57-bit virtual addresses leave a process half of them. No allocation
// or segment has more bytes, nor have all that are held at once.
inline constexpr std::uint64_t kMostHeldBytes = std::uint64_t{1} << 56;

// One event in an allocator's record. The words are PyTorch's, except kStep and kFlush.
enum class MemoryAction : std::uint8_t {
  kAlloc,
  kFreeRequested,  // the caller freed the block; uses on other streams may still be queued
  kFreeCompleted,  // those uses have finished: the memory may be reused
  kSegmentAlloc,   // the allocator obtained a segment
  kSegmentFree,
  kSegmentMap,  // pages of an expandable segment
  kSegmentUnmap,
  kStep,         // the caller began an iteration
  kOutOfMemory,  // a request failed; `bytes` is its size
  kSnapshot,
  kFlush,  // the caller freed all cached memory; only in records without segments
};

struct MemoryEvent {
  MemoryAction action = MemoryAction::kAlloc;
  Category category = Category::kExternal;
  std::uint16_t pool = 0;  // as SnapshotSegment::pool, where the record tells; kFlush: that pool's
  std::uint32_t name = 0;  // a site or tag: index into MemorySnapshot::names; 0 is ""
  std::uint64_t stream = 0;   // the caller's opaque name of a stream
  std::uint64_t address = 0;  // kOutOfMemory: the device's free bytes; 0 if not recorded
  std::uint64_t bytes = 0;    // as requested, before any rounding
  std::int64_t time_ns = 0;
};

enum class BlockState : std::uint8_t { kAllocated, kPendingFree, kFree };

struct SnapshotBlock {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;            // as the allocator rounded them
  std::uint64_t requested_bytes = 0;  // 0 if free
  BlockState state = BlockState::kFree;
  Category category = Category::kExternal;
  std::uint32_t name = 0;
  bool unrecorded = false;  // AllocationRequest::unrecorded: it has no events. Not saved in files
};

struct SnapshotSegment {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t stream = 0;
  bool is_small = false;  // holds blocks of at most 1 MiB
  bool is_expandable = false;
  std::uint64_t pool = 0;             // 0 is the default pool; others are private (of graphs)
  std::vector<SnapshotBlock> blocks;  // in order of address, without gaps
};

// The state of an allocator at one moment, and the last events before it, oldest first. The record
// may be cut at the front.
struct MemorySnapshot {
  std::vector<SnapshotSegment> segments;
  std::vector<MemoryEvent> events;
  std::vector<std::string> names{""};
  std::int32_t device = 0;
  // Segments of pinned host memory, which a record may list besides. They are in no event.
  std::uint64_t host_segment_count = 0;
  std::uint64_t host_bytes = 0;
  // The settings of the recording allocator that change its behaviour, with PyTorch's names and
  // defaults.
  bool expandable_segments = false;
  std::uint64_t max_split_bytes = UINT64_MAX;
  std::uint64_t roundup_power2_divisions = 0;  // 0 is off
  // The divisions by size, indexed by log2(bytes >> 20); empty if it is the same for all sizes.
  std::vector<std::uint64_t> roundup_divisions_by_power;
};

// The form that a replay needs: allocations by dense index, and operations on them.
struct TraceAllocation {
  std::uint64_t bytes = 0;
  std::uint64_t stream = 0;
  std::uint64_t pool = 0;
  std::uint64_t address = 0;          // as recorded; 0 if not known
  std::uint64_t segment_address = 0;  // of the segment that was obtained for it; 0 if none was
  Category category = Category::kExternal;
  std::uint32_t name = 0;
};

enum class TraceAction : std::uint8_t {
  kAlloc,
  kFree,           // its stream may reuse the memory at once
  kFreePending,    // other streams still use it, until kFreeCompleted
  kFreeCompleted,  // ends kFreePending
  kStep,           // an iteration begins
  kFlush,          // the caller freed all cached memory of the default pool
  kReleasePool,    // the cached memory of one private pool was freed
  kRefused,        // a request that the recording allocator could not serve
};

struct TraceOperation {
  TraceAction action = TraceAction::kAlloc;
  std::uint32_t allocation = 0;  // index; 0 for kStep and kFlush, a pool's number for kReleasePool
};

// A request that the recording allocator refused. A replay must serve it where it stands. It is
// freed at once, because the record tells nothing of its further life.
struct RefusedRequest {
  std::uint32_t allocation = 0;         // of its kRefused; it has no other operation
  std::uint64_t reserved_bytes = 0;     // by the recording allocator then; 0 if not recorded
  std::uint64_t device_free_bytes = 0;  // then; 0 if not recorded
};

struct MemoryTrace {
  std::string source;  // the file, for messages
  std::string format;  // "torch", "rmm", "sluice", "generated"
  std::vector<TraceAllocation> allocations;
  std::vector<TraceOperation> operations;
  std::vector<std::string> names{""};
  // The memory held before the first operation, if the record was cut at the front. Its blocks are
  // allocations, too: block b of segment s is initial_ids[s][b] and has no kAlloc.
  std::vector<SnapshotSegment> initial_segments;
  std::vector<std::vector<std::uint32_t>> initial_ids;  // UINT32_MAX for free blocks
  // Figures of the recording allocator; 0 if not recorded.
  std::uint64_t recorded_peak_reserved_bytes = 0;
  std::uint64_t recorded_end_reserved_bytes = 0;
  std::vector<RefusedRequest> refused;   // in the order of their operations
  std::uint64_t host_segment_count = 0;  // pinned host memory, which no operation uses
  std::uint64_t host_bytes = 0;
  // The allocator freed a part of its cache, not all of it, to serve requests: its device was full.
  // A replay with recorded_peak_reserved_bytes of memory does the same at the same requests,
  // because exactly the requests that failed then would exceed that amount.
  bool recorded_trimming = false;
  bool expandable_segments = false;
  std::uint64_t max_split_bytes = UINT64_MAX;
  std::uint64_t roundup_power2_divisions = 0;
  std::vector<std::uint64_t> roundup_divisions_by_power;
};

// The requested bytes of blocks that are held before the first operation and not freed by the
// caller.
std::uint64_t initial_live_bytes(const MemoryTrace& trace);

// The largest sum of requested bytes held at once. A block counts until its caller frees it, also
// if other streams still use it. Refused requests were not held.
std::uint64_t peak_live_bytes(const MemoryTrace& trace);
// The peak with each refused request in its place: no smaller memory can serve the trace.
std::uint64_t peak_needed_bytes(const MemoryTrace& trace);
// The largest sum of requested bytes that callers had freed and other streams still used.
std::uint64_t peak_pending_bytes(const MemoryTrace& trace);

// The trace with all but its refused requests.
MemoryTrace without_refused(const MemoryTrace& trace);

}  // namespace sluice::record
