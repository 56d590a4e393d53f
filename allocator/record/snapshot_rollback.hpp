// The state of an allocator before the first event of a record, from its state after the last one.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "allocator/record/memory_trace.hpp"
#include "allocator/record/segment_map.hpp"

namespace sluice::record {

// What the events of a record are good for. PyTorch may be told not to record some actions; a
// record cut short may merely happen not to hold one.
struct RecordShape {
  bool skips_free_requested = false;  // something allocated has completed its free without one
  bool skips_free_completed = false;  // an address was used again without one
  bool has_segments = false;          // at the end, or among the events
};
RecordShape shape_of(const MemorySnapshot& snapshot);
// Addresses and sizes far beyond any device's are not followed, so that sums stay below 2^64.
bool is_followed(std::uint64_t address, std::uint64_t bytes);

struct RolledBlock {
  std::uint64_t requested_bytes = 0;
  std::uint64_t bytes = 0;                 // as the allocator rounded them; 0: not known
  std::uint64_t limit_bytes = UINT64_MAX;  // to the first block that lived behind it meanwhile
  std::uint64_t stream = 0;
  bool is_pending = false;
  Category category = Category::kExternal;
  std::uint32_t name = 0;
};

// What a segment was that events of the record bring into being.
struct RolledSegment {
  std::size_t event = 0;
  HeldSegment segment;
};

struct RolledState {
  SegmentMap segments;
  std::map<std::uint64_t, RolledBlock> blocks;
  std::vector<RolledSegment> later_segments;  // the last first
  std::uint64_t contradictions = 0;
};

// Undoes the events, the last first. Where one contradicts what is held it does what it can and is
// counted; the end state of a snapshot without segments is taken as unknown rather than as empty.
RolledState roll_back(const MemorySnapshot& snapshot);

// `state` as segments full of blocks. Free memory is one block where it is in one piece. A block
// whose size is not recorded has it from PyTorch's rules for rounding and splitting, which is exact
// unless a free block that stayed free to the end began behind its rest. A block outside all
// segments has one of its own, and is counted, unless the record has no segments at all.
std::vector<SnapshotSegment> segments_of(RolledState& state, const MemorySnapshot& snapshot);

}  // namespace sluice::record
