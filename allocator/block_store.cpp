#include "allocator/block_store.hpp"

#include "base/error.hpp"

namespace sluice {

BlockStore::BlockStore() : chunks_(std::make_unique<std::atomic<Block*>[]>(kMaxChunks)) {}

Block* BlockStore::take() {
  const std::lock_guard lock(mutex_);
  const std::uint32_t chunk = taken_count_ / kChunk;
  if (taken_count_ % kChunk == 0) {
    SLUICE_CHECK_MSG(chunk < kMaxChunks, "more than 64 million blocks");
    owned_.push_back(std::make_unique<Block[]>(kChunk));
    chunks_[chunk].store(owned_.back().get(), std::memory_order_release);
  }
  Block* const block = &owned_[chunk][taken_count_ % kChunk];
  block->id = taken_count_++;
  return block;
}

}  // namespace sluice
