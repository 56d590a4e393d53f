#include "allocator/caching/stream_pool.hpp"

#include "base/error.hpp"

namespace sluice::allocator {

void StreamPool::end_pending(Block& block) {
  block.pending = false;
  if (recorder_ == nullptr || block.untold) return;
  recorder_->record(record::MemoryAction::kFreeCompleted, id, block.address, block.requested_bytes,
                    block.category, block.name);
}

void StreamPool::settle_those_in_front() {
  while (!pending.empty() && pending.front().done()) {
    pending_bytes -= pending.front().block->bytes;
    put_back(pending.front().block);
    pending.pop_front();
  }
}

void StreamPool::settle_all() {
  for (std::size_t i = pending.size(); i-- > 0;) {
    if (!pending[i].done()) continue;
    Block* const block = pending[i].block;
    pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(i));
    pending_bytes -= block->bytes;
    put_back(block);
  }
}

void StreamPool::check_invariants() const {
  small.check_invariants();
  large.check_invariants();
  if (last_ == nullptr) return;
  SLUICE_CHECK(last_->kind == BlockKind::kUsed && last_->cached && !last_->pending);
  SLUICE_CHECK(!last_->segment->is_small() && &last_->segment->pool() == this);
}

}  // namespace sluice::allocator
