#include "tools/replay/peers/rmm_pool.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace sluice::replay {
namespace {

constexpr std::uint64_t kAlignment = 256;

constexpr std::uint64_t aligned(std::uint64_t bytes) {
  return (std::max<std::uint64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

RmmPool::RmmPool(const record::MemoryTrace& trace, std::uint64_t capacity_bytes)
    : trace_(trace), device_(trace, capacity_bytes), blocks_by_id_(trace.allocations.size()) {
  adopt_initial();
}

std::optional<std::uint64_t> RmmPool::allocate(std::uint32_t id) {
  const record::TraceAllocation& wanted = trace_.allocations[id];
  if (wanted.bytes >= kExbibyte) return std::nullopt;
  const Block block = get_block(aligned(wanted.bytes), index_of(wanted.stream));
  if (block.bytes == 0) return std::nullopt;
  blocks_by_id_[id] = block;
  return block.address;
}

void RmmPool::free(std::uint32_t id, bool pending) {
  SLUICE_CHECK(blocks_by_id_[id].bytes != 0);
  if (!pending) complete(id);
}

void RmmPool::complete(std::uint32_t id) {
  Block block = blocks_by_id_[id];
  SLUICE_CHECK(block.bytes != 0);
  blocks_by_id_[id] = {};
  block.is_head = upstream_.count(block.address) != 0;
  free_lists_[index_of(trace_.allocations[id].stream)].insert(block);
}

void RmmPool::FreeList::insert(const Block& block) {
  const auto next = std::find_if(blocks_.begin(), blocks_.end(),
                                 [&](const Block& other) { return block.address < other.address; });
  const bool joins_next = next != blocks_.end() && block.precedes(*next);
  if (next != blocks_.begin() && std::prev(next)->precedes(block)) {
    Block& previous = *std::prev(next);
    previous.bytes += block.bytes;
    if (joins_next) {
      previous.bytes += next->bytes;
      blocks_.erase(next);
    }
  } else if (joins_next) {
    *next = {block.address, block.bytes + next->bytes, block.is_head};
  } else {
    blocks_.insert(next, block);
  }
}

RmmPool::Block RmmPool::FreeList::take_best_fit(std::uint64_t bytes) {
  const auto best =
      std::min_element(blocks_.begin(), blocks_.end(), [bytes](const Block& a, const Block& b) {
        return a.bytes >= bytes && (a.bytes < b.bytes || b.bytes < bytes);
      });
  if (best == blocks_.end() || best->bytes < bytes) return {};
  const Block found = *best;
  blocks_.erase(best);
  return found;
}

RmmPool::StreamIndex RmmPool::index_of(std::uint64_t stream) {
  return streams_.try_emplace(stream, static_cast<StreamIndex>(streams_.size())).first->second;
}

RmmPool::Block RmmPool::split(Block block, std::uint64_t bytes, FreeList& rest_list) {
  if (block.bytes > bytes) rest_list.insert({block.address + bytes, block.bytes - bytes, false});
  block.bytes = bytes;
  return block;
}

RmmPool::Block RmmPool::get_block(std::uint64_t bytes, StreamIndex stream) {
  FreeList& list = free_lists_[stream];
  Block block = list.take_best_fit(bytes);
  if (block.bytes != 0) return split(block, bytes, list);
  block = take_from_other_stream(bytes, stream);
  if (block.bytes != 0) return block;
  block = merge_other_streams(bytes, stream, list);
  if (block.bytes != 0) return block;
  block = grow(bytes);
  return block.bytes == 0 ? block : split(block, bytes, list);
}

// The stream waits for the other's last event; the rest of the block stays the other's.
RmmPool::Block RmmPool::take_from_other_stream(std::uint64_t bytes, StreamIndex stream) {
  for (auto& [other, list] : free_lists_) {
    if (other == stream) continue;
    const Block block = list.take_best_fit(bytes);
    if (block.bytes == 0) continue;
    ++device_.counters.event_waits;
    return split(block, bytes, list);
  }
  return {};
}

// Joins the other streams' lists with this one's, one by one, until a block is large enough.
RmmPool::Block RmmPool::merge_other_streams(std::uint64_t bytes, StreamIndex stream,
                                            FreeList& list) {
  for (auto at = free_lists_.begin(); at != free_lists_.end();) {
    if (at->first == stream) {
      ++at;
      continue;
    }
    ++device_.counters.event_waits;
    for (const Block& block : at->second.blocks()) list.insert(block);
    at = free_lists_.erase(at);
    const Block block = list.take_best_fit(bytes);
    if (block.bytes != 0) return split(block, bytes, list);
  }
  return {};
}

// expand_pool without a maximum: as much again as the pool holds, then half of that, and so on.
RmmPool::Block RmmPool::grow(std::uint64_t bytes) {
  std::uint64_t size = std::max(bytes, device_.counters.reserved_bytes);
  while (!device_.try_obtain(size)) {
    if (size == bytes) return {};
    size = std::max(bytes, size / 2);
  }
  const std::uint64_t address = device_.reserve_addresses(size);
  upstream_.insert(address);
  return {address, size, true};
}

void RmmPool::adopt_initial() {
  for (std::size_t s = 0; s < trace_.initial_segments.size(); ++s) {
    const record::SnapshotSegment& segment = trace_.initial_segments[s];
    device_.adopt(segment.bytes);
    SLUICE_CHECK_MSG(device_.reserve_addresses(segment.bytes, segment.address) == segment.address,
                     "initial segments overlap");
    upstream_.insert(segment.address);
    for (std::size_t b = 0; b < segment.blocks.size(); ++b) {
      const record::SnapshotBlock& block = segment.blocks[b];
      std::uint64_t used_bytes = 0;
      if (block.state != record::BlockState::kFree) {
        const std::uint32_t id = trace_.initial_ids[s][b];
        used_bytes = std::min(aligned(trace_.allocations[id].bytes), block.bytes);
        blocks_by_id_[id] = {block.address, used_bytes, b == 0};
      }
      // What the recorder's rounding added is free here: blocks are given back by their size.
      if (used_bytes < block.bytes) {
        free_lists_[index_of(segment.stream)].insert(
            {block.address + used_bytes, block.bytes - used_bytes, used_bytes == 0 && b == 0});
      }
    }
  }
}

}  // namespace sluice::replay
