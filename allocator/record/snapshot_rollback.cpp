// Rolls a snapshot back, then rebuilds its blocks.
//
// Rollback walks the events from the last to the first. Undoing an allocation removes its block;
// undoing a free makes the block live or pending again; undoing a segment event adds or removes the
// segment. A freed block has no recorded size after rounding, so it remembers the nearest block
// that lived after it at any time. segments_of then walks segments and blocks together by address:
// it gives each block its size (block_bytes), and fills the gaps with free blocks.
#include "allocator/record/snapshot_rollback.hpp"

#include <algorithm>
#include <bit>
#include <iterator>
#include <set>
#include <utility>

namespace sluice::record {
namespace {

// PyTorch's constants (c10/core/AllocatorConfig.h, CUDACachingAllocator.cpp).
constexpr std::uint64_t kMinBlockBytes = 512;
constexpr std::uint64_t kSmallBytes = 1 << 20;         // the largest request of a small segment
constexpr std::uint64_t kSmallSegmentBytes = 2 << 20;  // large segments are never of this size
constexpr std::uint64_t kLargeSegmentBytes = 20 << 20;

// The size of a block for a request, by round_size of PyTorch.
std::uint64_t rounded_bytes(std::uint64_t bytes, const MemorySnapshot& settings) {
  if (bytes < kMinBlockBytes) return kMinBlockBytes;
  std::uint64_t divisions = settings.roundup_power2_divisions;
  if (const auto& table = settings.roundup_divisions_by_power; !table.empty()) {
    const auto power = static_cast<std::size_t>(std::bit_width(bytes >> 20));
    divisions = table[std::min(power == 0 ? 0 : power - 1, table.size() - 1)];
  }
  if (divisions > 1 && bytes / divisions >= kMinBlockBytes && bytes > kMinBlockBytes * divisions) {
    if (std::has_single_bit(bytes)) return bytes;
    const std::uint64_t step = std::bit_floor(bytes) >> (std::bit_width(divisions) - 1);
    return (bytes + step - 1) / step * step;
  }
  return (bytes + kMinBlockBytes - 1) / kMinBlockBytes * kMinBlockBytes;
}

// Applies the inverse of each event. Contradictions are counted, and a snapshot without segments
// has an unknown end state, so a missing block is no contradiction there.
class Rollback {
 public:
  explicit Rollback(const MemorySnapshot& snapshot)
      : snapshot_(snapshot), shape_(shape_of(snapshot)) {}

  RolledState run() {
    for (const SnapshotSegment& segment : snapshot_.segments) hold(segment);
    for (std::size_t i = snapshot_.events.size(); i-- > 0;) undo(i);
    return std::move(state_);
  }

 private:
  void contradict() { ++state_.contradictions; }

  // Adds a segment of the end state with its live and pending blocks.
  void hold(const SnapshotSegment& segment) {
    if (!is_followed(segment.address, segment.bytes) ||
        !state_.segments.add(segment.address, {.bytes = segment.bytes,
                                               .stream = segment.stream,
                                               .pool = segment.pool,
                                               .is_small = segment.is_small,
                                               .is_expandable = segment.is_expandable})) {
      contradict();
      return;
    }
    for (const SnapshotBlock& block : segment.blocks) {
      if (block.state == BlockState::kFree) continue;
      const bool is_inside =
          block.address >= segment.address && block.address - segment.address < segment.bytes;
      const RolledBlock held{.requested_bytes = std::min(block.requested_bytes, segment.bytes),
                             .bytes = block.bytes,
                             .stream = segment.stream,
                             .is_pending = block.state == BlockState::kPendingFree,
                             .category = block.category,
                             .name = block.name};
      if (!is_inside || !state_.blocks.emplace(block.address, held).second) contradict();
    }
  }

  // Steps, failed requests, snapshots and flushes change no block.
  void undo(std::size_t index) {
    const MemoryEvent& event = snapshot_.events[index];
    switch (event.action) {
      case MemoryAction::kStep:
      case MemoryAction::kOutOfMemory:
      case MemoryAction::kSnapshot:
      case MemoryAction::kFlush:
        return;
      default:
        break;
    }
    if (!is_followed(event.address, event.bytes)) return;  // trace_of counts it
    switch (event.action) {
      case MemoryAction::kAlloc:
        undo_alloc(event);
        return;
      case MemoryAction::kFreeRequested:
        undo_free_requested(event);
        return;
      case MemoryAction::kFreeCompleted:
        revive(event, !shape_.skips_free_requested);
        return;
      default:
        undo_segment(index, event);
        return;
    }
  }

  // The block did not exist before its allocation.
  void undo_alloc(const MemoryEvent& event) {
    const auto found = state_.blocks.find(event.address);
    if (found == state_.blocks.end()) {
      if (!snapshot_.segments.empty()) contradict();
      return;
    }
    if (found->second.is_pending && !shape_.skips_free_requested) contradict();
    state_.blocks.erase(found);
  }

  // The block was live before the request. Its completed free, if recorded, has made it pending.
  void undo_free_requested(const MemoryEvent& event) {
    if (shape_.skips_free_completed) {
      revive(event, false);
      return;
    }
    const auto found = state_.blocks.find(event.address);
    if (found != state_.blocks.end()) {
      if (!found->second.is_pending) contradict();
      found->second.is_pending = false;
      return;
    }
    if (!snapshot_.segments.empty()) contradict();
    revive(event, false);
  }

  // Restores a block that an event freed.
  void revive(const MemoryEvent& event, bool is_pending) {
    RolledBlock block{.requested_bytes = event.bytes,
                      .stream = event.stream,
                      .is_pending = is_pending,
                      .category = event.category,
                      .name = event.name};
    const auto [position, is_new] = state_.blocks.insert_or_assign(event.address, block);
    if (!is_new) contradict();
    if (const auto next = std::next(position); next != state_.blocks.end()) {
      position->second.limit_bytes = next->first - event.address;
      if (position->second.limit_bytes < event.bytes) contradict();
    }
    if (position == state_.blocks.begin()) return;
    const auto before = std::prev(position);
    const std::uint64_t room_bytes = event.address - before->first;
    before->second.limit_bytes = std::min(before->second.limit_bytes, room_bytes);
    if (before->second.requested_bytes > room_bytes) contradict();
  }

  // Undoing a free or an unmapping adds pages. Undoing the opposite removes them, and keeps their
  // kind for the way forward.
  void undo_segment(std::size_t index, const MemoryEvent& event) {
    const HeldSegment pages{.bytes = event.bytes,
                            .stream = event.stream,
                            .pool = event.pool,
                            .is_small = event.bytes == kSmallSegmentBytes};
    if (event.action == MemoryAction::kSegmentFree) {
      if (!state_.segments.add(event.address, pages)) contradict();
      return;
    }
    if (event.action == MemoryAction::kSegmentUnmap) {
      // Large pools map their pages in pieces of 20 MiB, small ones of 2 MiB.
      HeldSegment mapped = pages;
      mapped.is_small = event.bytes % kLargeSegmentBytes != 0;
      if (!state_.segments.map(event.address, mapped)) contradict();
      return;
    }
    std::optional<HeldSegment> gone;
    bool is_exact = true;
    if (event.action == MemoryAction::kSegmentAlloc) {
      gone = state_.segments.remove(event.address, event.bytes, is_exact);
    } else {
      gone = state_.segments.unmap(event.address, event.bytes);
    }
    if (gone) state_.later_segments.push_back({index, *gone});
    if ((!gone || !is_exact) && !snapshot_.segments.empty()) contradict();
  }

  const MemorySnapshot& snapshot_;
  RecordShape shape_;
  RolledState state_;
};

// The size of a block that has at most `room_bytes`, in a segment of this kind.
std::uint64_t block_bytes(const RolledBlock& block, const HeldSegment& segment,
                          std::uint64_t room_bytes, const MemorySnapshot& settings) {
  const std::uint64_t limit_bytes = std::min(room_bytes, block.limit_bytes);
  if (block.bytes > 0) return std::min(block.bytes, room_bytes);
  const std::uint64_t least_bytes = rounded_bytes(block.requested_bytes, settings);
  if (least_bytes >= limit_bytes) return limit_bytes;
  if (segment.is_small || segment.is_expandable || settings.expandable_segments) return least_bytes;
  // PyTorch never splits off a rest of at most 1 MiB, so no free block of a large segment is so
  // small.
  const std::uint64_t rest_bytes = limit_bytes - least_bytes;
  const bool is_whole = least_bytes >= settings.max_split_bytes ? rest_bytes < kLargeSegmentBytes
                                                                : rest_bytes <= kSmallBytes;
  return is_whole ? limit_bytes : least_bytes;
}

// Appends a live or pending block to a segment.
void append_block(SnapshotSegment& segment, std::uint64_t address, std::uint64_t bytes,
                  const RolledBlock& block) {
  segment.blocks.push_back(
      {.address = address,
       .bytes = bytes,
       .requested_bytes = std::min(block.requested_bytes, bytes),
       .state = block.is_pending ? BlockState::kPendingFree : BlockState::kAllocated,
       .category = block.category,
       .name = block.name});
}

}  // namespace

RecordShape shape_of(const MemorySnapshot& snapshot) {
  RecordShape shape;
  shape.has_segments = !snapshot.segments.empty();
  bool has_requested = false;
  bool has_completed = false;
  for (const MemoryEvent& event : snapshot.events) {
    has_requested |= event.action == MemoryAction::kFreeRequested;
    has_completed |= event.action == MemoryAction::kFreeCompleted;
    shape.has_segments |=
        event.action >= MemoryAction::kSegmentAlloc && event.action <= MemoryAction::kSegmentUnmap;
  }
  if (has_requested == has_completed) return shape;
  // Only one kind of event is present. The record lacks the other kind if an address is seen where
  // the other event must have come between.
  std::set<std::uint64_t> seen;  // addresses that were allocated, or whose free was requested
  for (const MemoryEvent& event : snapshot.events) {
    const bool is_alloc = event.action == MemoryAction::kAlloc;
    const bool is_free = event.action == MemoryAction::kFreeRequested ||
                         event.action == MemoryAction::kFreeCompleted;
    if (has_completed ? is_alloc : is_free) seen.insert(event.address);
    if ((has_completed ? is_free : is_alloc) && seen.contains(event.address)) {
      (has_completed ? shape.skips_free_requested : shape.skips_free_completed) = true;
      break;
    }
  }
  return shape;
}

bool is_followed(std::uint64_t address, std::uint64_t bytes) {
  return address < std::uint64_t{1} << 62 && bytes <= kMostHeldBytes;
}

RolledState roll_back(const MemorySnapshot& snapshot) {
  return Rollback(snapshot).run();
}

std::vector<SnapshotSegment> segments_of(RolledState& state, const MemorySnapshot& snapshot) {
  const bool has_segments = shape_of(snapshot).has_segments;
  std::vector<SnapshotSegment> result;
  auto block = state.blocks.cbegin();
  // Makes a segment for each block before `end`, where the next segment begins.
  const auto take_strays = [&](std::uint64_t end) {
    for (; block != state.blocks.cend() && block->first < end; ++block) {
      const auto next = std::next(block);
      const std::uint64_t next_address = next == state.blocks.cend() ? UINT64_MAX : next->first;
      const std::uint64_t room_bytes = std::min(end, next_address) - block->first;
      const HeldSegment own{.bytes = room_bytes, .is_small = true};
      const std::uint64_t bytes = block_bytes(block->second, own, room_bytes, snapshot);
      SnapshotSegment& segment = result.emplace_back();
      segment.address = block->first;
      segment.bytes = bytes;
      segment.stream = block->second.stream;
      segment.is_small = bytes <= kSmallBytes;
      append_block(segment, block->first, bytes, block->second);
      if (has_segments) ++state.contradictions;
    }
  };
  for (const auto& [address, held] : state.segments.all()) {
    take_strays(address);
    SnapshotSegment& segment = result.emplace_back();
    segment.address = address;
    segment.bytes = held.bytes;
    segment.stream = held.stream;
    segment.is_small = held.is_small;
    segment.is_expandable = held.is_expandable;
    segment.pool = held.pool;
    const std::uint64_t end = address + held.bytes;
    std::uint64_t covered = address;
    for (; block != state.blocks.cend() && block->first < end; ++block) {
      if (block->first > covered) {
        segment.blocks.push_back({.address = covered, .bytes = block->first - covered});
      }
      const auto next = std::next(block);
      const bool is_last = next == state.blocks.cend() || next->first >= end;
      const std::uint64_t room_bytes = (is_last ? end : next->first) - block->first;
      const std::uint64_t bytes = block_bytes(block->second, held, room_bytes, snapshot);
      append_block(segment, block->first, bytes, block->second);
      covered = block->first + bytes;
    }
    if (covered < end) segment.blocks.push_back({.address = covered, .bytes = end - covered});
  }
  take_strays(UINT64_MAX);
  return result;
}

}  // namespace sluice::record
