#include "allocator/caching/stream_pool.hpp"

#include "base/error.hpp"

namespace sluice::allocator {

void StreamPool::end_pending(Block& block) {
  block.pending = false;
  if (recorder_ == nullptr || block.unrecorded) return;
  recorder_->record(record::MemoryAction::kFreeCompleted, id, block.address, block.requested_bytes,
                    block.category, block.name);
}

void StreamPool::free_completed_in_front() {
  while (!pending.empty() && pending.front().done()) {
    pending_bytes -= pending.front().block->bytes;
    free(pending.front().block);
    pending.pop_front();
  }
}

void StreamPool::free_completed() {
  for (std::size_t i = pending.size(); i-- > 0;) {
    if (!pending[i].done()) continue;
    Block* const block = pending[i].block;
    pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(i));
    pending_bytes -= block->bytes;
    free(block);
  }
}

void StreamPool::check_invariants() const {
  small.check_invariants();
  large.check_invariants();
  if (cached_ == nullptr) return;
  SLUICE_CHECK(cached_->kind == BlockKind::kUsed && cached_->cached && !cached_->pending);
  SLUICE_CHECK(!cached_->segment->is_small() && &cached_->segment->pool() == this);
}

}  // namespace sluice::allocator
