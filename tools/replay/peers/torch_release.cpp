// How the caching allocator frees its cache: a part when memory is short, or all.
#include <algorithm>
#include <vector>

#include "tools/replay/peers/torch_allocator.hpp"

namespace sluice::replay {

// release_available_cached_blocks: frees blocks that are too large to be split, just enough for the
// request: one that suffices alone, or several of the largest.
bool TorchAllocator::release_available(const Request& request) {
  const std::uint64_t limit = trace_.max_split_bytes;
  if (limit == UINT64_MAX) return false;
  auto& blocks = request.pool->blocks;
  TorchBlock key;
  key.stream = request.stream;
  key.bytes = std::max(request.bytes, limit);
  const auto may_go = [&](const TorchBlock* block) {
    return block->stream == request.stream && block->segment == nullptr && !block->is_split();
  };
  auto found = blocks.lower_bound(&key);
  if (found != blocks.end() && may_go(*found)) {
    ++device_.counters.synchronisations;
    release_block(*found);
    return true;
  }
  std::uint64_t released_bytes = 0;
  while (released_bytes < key.bytes && found != blocks.begin()) {
    TorchBlock* const block = *std::prev(found);
    if (block->stream != request.stream || block->bytes < limit) break;
    if (may_go(block)) {
      if (released_bytes == 0) ++device_.counters.synchronisations;
      released_bytes += block->bytes;
      release_block(block);  // `found` stands after it and stays valid
    } else {
      --found;
    }
  }
  return released_bytes >= key.bytes;
}

// release_cached_blocks: frees every segment that is wholly free, and every such page of expandable
// segments.
void TorchAllocator::release_cached() {
  ++device_.counters.flushes;
  ++device_.counters.synchronisations;
  complete_all_pending();
  release_blocks(pools_.large);
  release_blocks(pools_.small);
}

// The part of release_cached_blocks that frees a private pool whose graphs are gone.
void TorchAllocator::release_pool(std::uint64_t pool) {
  const auto found = private_pools_.find(pool);
  if (found == private_pools_.end()) return;
  complete_all_pending();
  release_blocks(found->second.large);
  release_blocks(found->second.small);
}

void TorchAllocator::complete_all_pending() {
  for (const std::uint32_t id : pending_ids_) complete(id);
  pending_ids_.clear();
}

void TorchAllocator::release_blocks(TorchPool& pool) {
  std::vector<TorchBlock*> to_unmap;  // unmapping changes the set that is walked
  for (auto at = pool.blocks.begin(); at != pool.blocks.end();) {
    TorchBlock* const block = *at++;
    if (block->segment != nullptr) {
      to_unmap.push_back(block);
    } else if (!block->is_split()) {
      release_block(block);
    }
  }
  for (TorchBlock* const block : to_unmap) {
    unmap_block(block);
    if (!block->is_split()) release_segment(block);
  }
}

void TorchAllocator::release_block(TorchBlock* block) {
  block->pool->blocks.erase(block);
  device_.give_back(block->bytes);
  device_.release_addresses(block->address);
  store_.drop(block);
}

}  // namespace sluice::replay
