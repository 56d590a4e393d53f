// Allocation and free of PyTorch's caching allocator.
//
// A request takes the smallest free block of its stream and pool, or else a new segment from the
// driver. If the driver refuses, the allocator frees large blocks (release_available), then its
// whole cache, and tries again after each. A block that is much larger than the request is split. A
// freed block merges with its free neighbours in the segment. Comments name the original functions.
#include "tools/replay/peers/torch_allocator.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace sluice::replay {

TorchAllocator::TorchAllocator(const record::MemoryTrace& trace, std::uint64_t capacity_bytes,
                               TorchSegments segments)
    : trace_(trace),
      device_(trace, capacity_bytes),
      round_(trace),
      segments_(segments),
      blocks_by_id_(trace.allocations.size(), nullptr) {
  pools_.small.is_small = true;
  adopt_initial();
}

std::optional<std::uint64_t> TorchAllocator::allocate(std::uint32_t id) {
  const record::TraceAllocation& wanted = trace_.allocations[id];
  if (wanted.bytes >= kExbibyte) return std::nullopt;
  const std::uint64_t bytes = round_(wanted.bytes);
  const Request request{wanted.stream, bytes, wanted.segment_address,
                        pool_of(wanted.pool, bytes <= kTorchSmallSize)};
  TorchBlock* block = find_free(request);
  if (block == nullptr) block = obtain(request);
  if (block == nullptr && release_available(request)) block = obtain(request);
  if (block == nullptr && !request.pool->is_private) {
    release_cached();
    block = obtain(request);
  }
  if (block == nullptr) return std::nullopt;
  if (should_split(*block, bytes)) block = split(block, bytes);
  block->allocated = true;
  blocks_by_id_[id] = block;
  return block->address;
}

void TorchAllocator::free(std::uint32_t id, bool pending) {
  TorchBlock* const block = blocks_by_id_[id];
  SLUICE_CHECK(block != nullptr && block->allocated);
  block->allocated = false;
  if (pending) {
    block->pending = true;
    pending_ids_.push_back(id);
    return;
  }
  blocks_by_id_[id] = nullptr;
  free_block(block);
}

void TorchAllocator::complete(std::uint32_t id) {
  TorchBlock* const block = blocks_by_id_[id];
  if (block == nullptr) return;  // a synchronisation came first
  SLUICE_CHECK(block->pending);
  block->pending = false;
  blocks_by_id_[id] = nullptr;
  free_block(block);
}

// Each private pool has a small and a large part, like the default pool.
TorchPool* TorchAllocator::pool_of(std::uint64_t pool, bool is_small) {
  if (pool == 0) return is_small ? &pools_.small : &pools_.large;
  const auto [found, is_new] = private_pools_.try_emplace(pool);
  PoolPair& pair = found->second;
  if (is_new) {
    pair.small.is_small = true;
    pair.small.is_private = pair.large.is_private = true;
  }
  return is_small ? &pair.small : &pair.large;
}

// get_free_block.
TorchBlock* TorchAllocator::find_free(const Request& request) {
  auto& blocks = request.pool->blocks;
  TorchBlock key;
  key.stream = request.stream;
  key.bytes = request.bytes;
  auto found = blocks.lower_bound(&key);
  if (found == blocks.end() || (*found)->stream != request.stream) return nullptr;
  if ((*found)->segment != nullptr) {
    // A block that can grow in place counts as large as it could become: it is the last resort.
    const auto growable_bytes = [](const TorchBlock* block) {
      return block->bytes +
             (block->next != nullptr && !block->next->mapped ? block->next->bytes : 0);
    };
    auto next = std::next(found);
    while ((*found)->segment != nullptr && next != blocks.end() &&
           (*next)->stream == request.stream && growable_bytes(*next) < growable_bytes(*found)) {
      found = next++;
    }
  }
  TorchBlock* const block = *found;
  const std::uint64_t limit = trace_.max_split_bytes;
  if (request.bytes < limit && block->bytes >= limit) return nullptr;
  if (request.bytes >= limit && block->bytes >= request.bytes + kTorchLargeBuffer) return nullptr;
  blocks.erase(found);
  return block;
}

// alloc_block.
TorchBlock* TorchAllocator::obtain(const Request& request) {
  if (segments_ == TorchSegments::kExpandable) return obtain_expandable(request);
  const std::uint64_t bytes = torch_segment_bytes(request.bytes);
  if (bytes > device_.room_bytes()) return nullptr;
  const auto address = device_.reserve_addresses(bytes, request.wanted_address);
  if (!address) return nullptr;
  SLUICE_CHECK(device_.try_obtain(bytes));
  TorchBlock block;
  block.stream = request.stream;
  block.bytes = bytes;
  block.address = *address;
  block.pool = request.pool;
  return store_.make(block);
}

// should_split: small blocks and expandable ones leave any rest, others only one above 1 MiB.
bool TorchAllocator::should_split(const TorchBlock& block, std::uint64_t bytes) const {
  const std::uint64_t remaining = block.bytes - bytes;
  if (block.pool->is_small || segments_ == TorchSegments::kExpandable) {
    return remaining >= kTorchMinBlock;
  }
  return bytes < trace_.max_split_bytes && remaining > kTorchSmallSize;
}

// Splits off the front of a block. The rest stays a free block.
TorchBlock* TorchAllocator::split(TorchBlock* block, std::uint64_t bytes) {
  TorchBlock* const front = store_.make(*block);
  front->bytes = bytes;
  front->splice(block->prev, block);
  block->address += bytes;
  block->bytes -= bytes;
  block->pool->blocks.insert(block);
  return front;
}

// free_block: merges with both neighbours.
void TorchAllocator::free_block(TorchBlock* block) {
  TorchBlock* const prev = block->prev;
  TorchBlock* const next = block->next;
  try_merge(block, prev);
  try_merge(block, next);
  block->pool->blocks.insert(block);
}

// try_merge_blocks: `from`, a neighbour or null, becomes part of `into`.
bool TorchAllocator::try_merge(TorchBlock* into, TorchBlock* from) {
  if (from == nullptr || !from->is_free() || into->mapped != from->mapped) return false;
  if (from->mapped) {
    from->pool->blocks.erase(from);
  } else {
    from->pool->unmapped.erase(from);
  }
  if (into->prev == from) {
    into->address = from->address;
    into->prev = from->prev;
    if (into->prev != nullptr) into->prev->next = into;
  } else {
    into->next = from->next;
    if (into->next != nullptr) into->next->prev = into;
  }
  into->bytes += from->bytes;
  store_.drop(from);
  return true;
}

}  // namespace sluice::replay
