// Restores the caching allocator at the begin of the trace. Fixed segments are adopted as they are.
// A record lists the mapped ranges of expandable segments, but not where a segment begins or ends.
// Ranges of one stream and pool share a segment if they can, from the lowest on, and the addresses
// between them are unmapped. With fixed segments, every range is a segment.
#include <algorithm>
#include <numeric>
#include <vector>

#include "base/error.hpp"
#include "tools/replay/peers/torch_allocator.hpp"

namespace sluice::replay {

struct TorchAllocator::InitialRange {
  std::uint64_t address = 0;
  std::uint64_t end = 0;
  std::uint64_t page_bytes = 0;       // 0 for a fixed segment
  std::vector<std::size_t> segments;  // of the trace, by address
};

// Groups the recorded segments into ranges of addresses, then adopts each range.
void TorchAllocator::adopt_initial() {
  const auto& segments = trace_.initial_segments;
  std::vector<std::size_t> order(segments.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return segments[a].address < segments[b].address;
  });
  std::vector<InitialRange> ranges;
  for (const std::size_t i : order) {
    const record::SnapshotSegment& segment = segments[i];
    const std::uint64_t page_bytes = segment.is_small ? kTorchSmallBuffer : kTorchLargeBuffer;
    const bool grows = segments_ == TorchSegments::kExpandable && segment.is_expandable &&
                       segment.bytes % page_bytes == 0;
    const auto joins = [&](const InitialRange& range) {
      const record::SnapshotSegment& first = segments[range.segments.front()];
      return range.page_bytes == page_bytes && first.stream == segment.stream &&
             first.pool == segment.pool && (segment.address - range.address) % page_bytes == 0 &&
             segment.address + segment.bytes <= range.end;
    };
    if (grows && !ranges.empty() && joins(ranges.back())) {
      ranges.back().segments.push_back(i);
      continue;
    }
    if (!ranges.empty() && ranges.back().end > segment.address) {
      InitialRange& before = ranges.back();
      SLUICE_CHECK_MSG(before.page_bytes != 0, "initial segments overlap");
      before.end = segment.address - (segment.address - before.address) % before.page_bytes;
    }
    const std::uint64_t span =
        grows ? std::max(segment.bytes, address_space_bytes(page_bytes)) : segment.bytes;
    ranges.push_back({segment.address, segment.address + span, grows ? page_bytes : 0, {i}});
  }
  for (const InitialRange& range : ranges) adopt_range(range);
}

// Builds the list of blocks of one range, with unmapped blocks between the recorded segments.
void TorchAllocator::adopt_range(const InitialRange& range) {
  const record::SnapshotSegment& first = trace_.initial_segments[range.segments.front()];
  const std::uint64_t span = range.end - range.address;
  device_.reserve_at(range.address, span);
  TorchBlock like;
  like.stream = first.stream;
  like.pool = pool_of(first.pool, first.is_small);
  if (range.page_bytes != 0) {
    like.segment =
        &expandable_.emplace_back(ExpandableSegment{range.address, span, range.page_bytes});
  }
  const auto append_unmapped = [&](TorchBlock* last, std::uint64_t begin, std::uint64_t end) {
    if (begin >= end) return last;
    TorchBlock gap = like;
    gap.address = begin;
    gap.bytes = end - begin;
    gap.mapped = false;
    TorchBlock* const block = append_block(last, gap);
    like.pool->unmapped.insert(block);
    return block;
  };
  TorchBlock* last = nullptr;
  std::uint64_t at = range.address;
  for (const std::size_t i : range.segments) {
    const record::SnapshotSegment& segment = trace_.initial_segments[i];
    last = append_unmapped(last, at, segment.address);
    last = append_segment(last, i, like);
    at = segment.address + segment.bytes;
    device_.adopt(segment.bytes);
  }
  append_unmapped(last, at, range.end);
}

TorchBlock* TorchAllocator::append_block(TorchBlock* last, const TorchBlock& value) {
  TorchBlock* const block = store_.make(value);
  block->splice(last, nullptr);
  return block;
}

// Appends the recorded blocks of a segment. Free ones enter the pool, others are found by their id.
TorchBlock* TorchAllocator::append_segment(TorchBlock* last, std::size_t index,
                                           const TorchBlock& like) {
  const auto& blocks = trace_.initial_segments[index].blocks;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    TorchBlock value = like;
    value.address = blocks[b].address;
    value.bytes = blocks[b].bytes;
    value.allocated = blocks[b].state == record::BlockState::kAllocated;
    value.pending = blocks[b].state == record::BlockState::kPendingFree;
    last = append_block(last, value);
    if (last->is_free()) {
      last->pool->blocks.insert(last);
      continue;
    }
    const std::uint32_t id = trace_.initial_ids[index][b];
    blocks_by_id_[id] = last;
    if (last->pending) pending_ids_.push_back(id);
  }
  return last;
}

}  // namespace sluice::replay
