#include "allocator/caching/block_store.hpp"

namespace sluice::allocator {

Block* BlockStore::take() {
  const MutexLock lock(mutex_);
  if (taken_count_ % kChunk == 0) chunks_.push_back(std::make_unique<Block[]>(kChunk));
  return &chunks_.back()[taken_count_++ % kChunk];
}

}  // namespace sluice::allocator
