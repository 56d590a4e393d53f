// Computes the state of an allocator before the first event of a record from the state after the
// last.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "allocator/record/memory_trace.hpp"
#include "allocator/record/segment_map.hpp"

namespace sluice::record {

// Kinds of events that a record lacks. PyTorch can be set not to record some actions. A short
// record may also lack one by chance, which is not meant here.
struct RecordShape {
  bool skips_free_requested = false;  // a recorded allocation completed its free without one
  bool skips_free_completed = false;  // an address was used again without one
  bool has_segments = false;          // at the end, or among the events
};
RecordShape shape_of(const MemorySnapshot& snapshot);
// False for addresses far beyond any device's and for sizes above kMostHeldBytes: such events are
// skipped, so that sums stay below 2^64.
bool is_followed(std::uint64_t address, std::uint64_t bytes);

struct RolledBlock {
  std::uint64_t requested_bytes = 0;
  std::uint64_t bytes = 0;                 // as the allocator rounded them; 0 if not known
  std::uint64_t limit_bytes = UINT64_MAX;  // distance to the nearest later block, at any time
  std::uint64_t stream = 0;
  bool is_pending = false;
  Category category = Category::kExternal;
  std::uint32_t name = 0;
};

// A segment that an event of the record creates.
struct RolledSegment {
  std::size_t event = 0;
  HeldSegment segment;
};

struct RolledState {
  SegmentMap segments;
  std::map<std::uint64_t, RolledBlock> blocks;
  std::vector<RolledSegment> later_segments;  // in reverse order of their events
  std::uint64_t contradictions = 0;
};

// Undoes the events from the last to the first. An event that contradicts the state is applied as
// far as possible and counted. If the snapshot has no segments, its end state is unknown, not
// empty.
RolledState roll_back(const MemorySnapshot& snapshot);

// Returns the state as segments that blocks fill. Adjacent free memory is one block. If the size of
// a block is not recorded, PyTorch's rules for rounding and splitting give it. That is exact unless
// a block that stayed free to the end began right after it. A block outside all segments gets a
// segment of its own; it counts as a contradiction unless the record has no segments at all.
std::vector<SnapshotSegment> segments_of(RolledState& state, const MemorySnapshot& snapshot);

}  // namespace sluice::record
