// CachingAllocator's snapshot, and the check of its invariants.
#include <algorithm>
#include <unordered_map>

#include "allocator/caching/caching_allocator.hpp"
#include "base/error.hpp"
#include "base/mutex.hpp"

namespace sluice::allocator {

record::MemorySnapshot CachingAllocator::snapshot() {
  const MutexLock growth(growth_mutex_);
  const PoolLocks locks(pools_);
  const ThreadCaches::AllLocked caches(caches_);
  return snapshot_locked();
}

record::MemorySnapshot CachingAllocator::snapshot_locked() {
  record::MemorySnapshot snapshot;
  snapshot.expandable_segments = true;
  if (options_.recorder != nullptr) {
    snapshot.events = options_.recorder->events();
    snapshot.names = options_.recorder->names();
  }
  for (StreamPool& pool : pools_) {
    pool.mutex.assert_held();
    for (const BlockSpace* space : {&pool.small, &pool.large}) {
      // Each run of blocks between unbacked ones becomes a segment of the snapshot.
      bool open = false;
      space->visit_all([&](const Block& block) {
        if (block.kind == BlockKind::kUnbacked) {
          open = false;
          return;
        }
        if (!open || block.previous == nullptr) {
          record::SnapshotSegment segment;
          segment.address = block.address;
          segment.stream = pool.id;
          segment.is_small = space == &pool.small;
          segment.is_expandable = true;
          snapshot.segments.push_back(std::move(segment));
          open = true;
        }
        const bool is_free = block.kind == BlockKind::kFree || block.cached;
        record::SnapshotSegment& segment = snapshot.segments.back();
        segment.bytes += block.bytes;
        segment.blocks.push_back({block.address, block.bytes, is_free ? 0 : block.requested_bytes,
                                  is_free         ? record::BlockState::kFree
                                  : block.pending ? record::BlockState::kPendingFree
                                                  : record::BlockState::kAllocated,
                                  block.category, block.kind == BlockKind::kUsed ? block.name : 0,
                                  !is_free && block.unrecorded});
      });
    }
  }
  return snapshot;
}

void CachingAllocator::check_invariants() {
  const MutexLock growth(growth_mutex_);
  const PoolLocks locks(pools_);
  std::uint64_t held_pages = 0;
  for (StreamPool& pool : pools_) {
    pool.mutex.assert_held();
    pool.check_invariants();
    std::uint64_t pending_bytes = 0;
    for (const PendingFree& pending : pool.pending) {
      SLUICE_CHECK(pending.block->pending && pending.block->kind == BlockKind::kUsed);
      pending_bytes += pending.block->bytes;
    }
    SLUICE_CHECK(pending_bytes == pool.pending_bytes);
    // Every used or free byte lies on a page that its entry holds; unbacked bytes do not.
    for (const BlockSpace* space : {&pool.small, &pool.large}) {
      std::uint64_t backed_bytes = 0;
      space->visit_all([&](const Block& block) {
        const bool unbacked = block.kind == BlockKind::kUnbacked;
        if (!unbacked) backed_bytes += block.bytes;
        const std::uint64_t first = block.address / page_bytes_ * page_bytes_;
        for (std::uint64_t page = first; page < block.address + block.bytes; page += page_bytes_) {
          SLUICE_CHECK(block.segment->entry_at(page).held() == !unbacked);
        }
        if (block.kind == BlockKind::kUsed) {
          SLUICE_CHECK(block.segment->find_block(block.address) == &block);
        }
      });
      SLUICE_CHECK(backed_bytes % page_bytes_ == 0);
      held_pages += backed_bytes / page_bytes_;
    }
    for (const auto& segment : pool.segments) {
      for (const PageEntry& entry : segment->entries()) {
        SLUICE_CHECK((entry.page != nullptr) == static_cast<bool>(entry.mapping));
      }
    }
  }
  SLUICE_CHECK(held_pages == held_pages_);
  std::uint64_t pages_with_memory = 0;
  for (const PhysicalPage& page : physical_) {
    if (page.handle == nullptr) continue;
    ++pages_with_memory;
    SLUICE_CHECK(page.handle->taken && page.holder != nullptr && page.holder->page == &page);
    bool holder_shows = false;
    for (const PageEntry* entry = page.aliases; entry != nullptr; entry = entry->next_alias) {
      SLUICE_CHECK(entry->page == &page);
      if (entry == page.holder) holder_shows = true;
    }
    SLUICE_CHECK(holder_shows);
  }
  SLUICE_CHECK(pages_with_memory == held_pages_);
  SLUICE_CHECK(spare_.size() + pages_with_memory == physical_.size());
}

}  // namespace sluice::allocator
