#include "tools/replay/peers/gmlake.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "tools/replay/peers/torch_sizes.hpp"

namespace sluice::replay {
namespace {

std::uint64_t lake_round(std::uint64_t bytes) {
  const std::uint64_t rounded = round_up(std::max<std::uint64_t>(bytes, 1), kTorchMinBlock);
  return rounded <= kTorchSmallSize ? rounded : round_up(rounded, kLakePage);
}

}  // namespace

GmLake::GmLake(const record::MemoryTrace& trace, std::uint64_t capacity_bytes)
    : trace_(trace),
      device_(trace, capacity_bytes),
      holdings_(trace.allocations.size()),
      is_pending_(trace.allocations.size(), false) {
  small_.is_small = true;
  adopt_initial();
}

std::optional<std::uint64_t> GmLake::allocate(std::uint32_t id) {
  const record::TraceAllocation& wanted = trace_.allocations[id];
  if (wanted.bytes >= kExbibyte) return std::nullopt;
  const std::uint64_t bytes = lake_round(wanted.bytes);
  const Request request{wanted.stream, bytes, bytes <= kTorchSmallSize};
  Holding holding = find_free(request);
  if (!holding) holding = stitch(request);
  if (!holding) holding = obtain(request);
  if (!holding) {
    release_cached();
    holding = obtain(request);
  }
  if (!holding) holding = stitch(request);
  if (!holding) return std::nullopt;
  holdings_[id] = holding;
  return holding.block != nullptr ? holding.block->address : holding.stitched->address;
}

void GmLake::free(std::uint32_t id, bool pending) {
  SLUICE_CHECK(holdings_[id] && !is_pending_[id]);
  is_pending_[id] = true;
  if (!pending) {
    complete(id);
    return;
  }
  if (LakeBlock* const block = holdings_[id].block) {
    block->allocated = false;
    block->pending = true;
  }
  pending_ids_.push_back(id);
}

void GmLake::complete(std::uint32_t id) {
  const Holding holding = holdings_[id];
  if (!holding) return;  // a synchronisation came first
  SLUICE_CHECK(is_pending_[id]);
  is_pending_[id] = false;
  holdings_[id] = {};
  give_back(holding);
}

void GmLake::flush() {
  release_cached();
  collect_stitched();
}

// get_free_block: stitched blocks only where no primitive one is large enough.
GmLake::Holding GmLake::find_free(const Request& request) {
  auto& blocks = (request.is_small ? small_ : large_).blocks;
  LakeBlock key;
  key.stream = request.stream;
  key.bytes = request.bytes;
  const auto found = blocks.lower_bound(&key);
  if (found == blocks.end() || (*found)->stream != request.stream) return take_stitched(request);
  LakeBlock* const block = *found;
  blocks.erase(found);
  return claim(block, request.bytes);
}

// realloc_block.
GmLake::Holding GmLake::obtain(const Request& request) {
  LakeBlock block;
  block.stream = request.stream;
  block.bytes = torch_segment_bytes(request.bytes);
  block.pool = request.is_small ? &small_ : &large_;
  const std::uint64_t page_count = request.is_small ? 0 : block.bytes / kLakePage;
  if (!device_.try_obtain(block.bytes, std::max<std::uint64_t>(page_count, 1))) return {};
  block.address = device_.reserve_addresses(block.bytes);
  if (page_count > 0) {
    auto& pages = pages_[block.address];
    pages.resize(static_cast<std::size_t>(page_count));
    block.pages = pages.data();
  }
  LakeBlock* const made = store_.make(block);
  made->own_pages();
  return claim(made, request.bytes);
}

// A free block outside its pool, for a caller; split where enough would remain.
GmLake::Holding GmLake::claim(LakeBlock* block, std::uint64_t bytes) {
  const std::uint64_t least = block->pool->is_small ? kTorchMinBlock : kLakePage;
  if (block->bytes - bytes >= least) block = split(block, bytes);
  block->allocated = true;
  for (std::size_t i = 0; i < block->page_count(); ++i) use_page(block->pages[i], nullptr);
  return {block, nullptr};
}

// The front of a block; the rest is free.
LakeBlock* GmLake::split(LakeBlock* block, std::uint64_t bytes) {
  LakeBlock* const front = store_.make(*block);
  front->bytes = bytes;
  front->splice(block->prev, block);
  front->own_pages();
  block->address += bytes;
  block->bytes -= bytes;
  if (block->pages != nullptr) block->pages += bytes / kLakePage;
  block->allocated = false;
  block->pool->blocks.insert(block);
  return front;
}

void GmLake::give_back(const Holding& holding) {
  if (holding.stitched != nullptr) {
    free_stitched(holding.stitched);
    return;
  }
  LakeBlock* const block = holding.block;
  for (std::size_t i = 0; i < block->page_count(); ++i) leave_page(block->pages[i], nullptr);
  free_block(block);
}

void GmLake::free_block(LakeBlock* block) {
  block->allocated = block->pending = false;
  LakeBlock* const prev = block->prev;
  LakeBlock* const next = block->next;
  try_merge(block, prev);
  try_merge(block, next);
  block->pool->blocks.insert(block);
}

void GmLake::try_merge(LakeBlock* into, LakeBlock* from) {
  if (from == nullptr || !from->is_free()) return;
  from->pool->blocks.erase(from);
  if (into->prev == from) {
    into->address = from->address;
    into->pages = from->pages;
    into->prev = from->prev;
    if (into->prev != nullptr) into->prev->next = into;
  } else {
    into->next = from->next;
    if (into->next != nullptr) into->next->prev = into;
  }
  into->bytes += from->bytes;
  into->own_pages();
  store_.drop(from);
}

// release_cached_blocks: every segment that is free as a whole.
void GmLake::release_cached() {
  ++device_.counters.flushes;
  ++device_.counters.synchronisations;
  for (const std::uint32_t id : pending_ids_) complete(id);
  pending_ids_.clear();
  release_blocks(large_);
  release_blocks(small_);
}

void GmLake::release_blocks(LakePool& pool) {
  for (auto at = pool.blocks.begin(); at != pool.blocks.end();) {
    LakeBlock* const block = *at++;
    if (!block->is_split()) release_block(block);
  }
}

void GmLake::release_block(LakeBlock* block) {
  detach_pages(block);
  block->pool->blocks.erase(block);
  device_.give_back(block->bytes);
  device_.release_addresses(block->address);
  if (block->pages != nullptr) pages_.erase(block->address);
  store_.drop(block);
}

void GmLake::adopt_initial() {
  for (std::size_t s = 0; s < trace_.initial_segments.size(); ++s) {
    const record::SnapshotSegment& segment = trace_.initial_segments[s];
    device_.adopt(segment.bytes);
    SLUICE_CHECK_MSG(device_.reserve_addresses(segment.bytes, segment.address) == segment.address,
                     "initial segments overlap");
    LakeBlock* last = nullptr;
    for (std::size_t b = 0; b < segment.blocks.size(); ++b) {
      const record::SnapshotBlock& given = segment.blocks[b];
      LakeBlock block;
      block.stream = segment.stream;
      block.bytes = given.bytes;
      block.address = given.address;
      block.pool = segment.is_small ? &small_ : &large_;
      block.allocated = given.state == record::BlockState::kAllocated;
      block.pending = given.state == record::BlockState::kPendingFree;
      LakeBlock* const made = store_.make(block);
      made->splice(last, nullptr);
      last = made;
      if (made->is_free()) {
        made->pool->blocks.insert(made);
        continue;
      }
      const std::uint32_t id = trace_.initial_ids[s][b];
      holdings_[id] = {made, nullptr};
      is_pending_[id] = made->pending;
      if (made->pending) pending_ids_.push_back(id);
    }
  }
}

}  // namespace sluice::replay
