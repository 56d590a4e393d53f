// The memory that one stream may reuse in its own order: two spaces of blocks, small and large.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "allocator/caching/address_segment.hpp"
#include "allocator/caching/allocation_counts.hpp"
#include "allocator/caching/block_space.hpp"
#include "allocator/record/memory_recorder.hpp"

namespace sluice::allocator {

using StreamId = std::uint32_t;

// A block that was freed while other streams had work on it queued.
struct PendingFree {
  Block* block = nullptr;
  std::vector<std::shared_ptr<device::Event>> events;

  bool done() const {
    for (const auto& event : events) {
      if (!event->done()) return false;
    }
    return true;
  }
};

// Small blocks (to 1 MiB) and large ones have separate spaces, so that small blocks do not cut up
// the runs that large ones need. The large block freed last stays whole (cached) until the next
// large request, because that often has the same size.
class StreamPool {
 public:
  // The largest block of the small space.
  static constexpr std::uint64_t kSmallBytes = AddressSegment::kLargeUnit;

  StreamPool(StreamId its_id, device::Stream& its_stream, bool is_movable, BlockStore& store,
             std::uint64_t page_bytes, record::MemoryRecorder* recorder)
      : id(its_id),
        stream(its_stream),
        movable(is_movable),
        small(store, page_bytes),
        large(store, page_bytes),
        recorder_(recorder) {}

  BlockSpace& space_for(std::uint64_t bytes) SLUICE_REQUIRES(mutex) {
    return bytes <= kSmallBytes ? small : large;
  }
  BlockSpace& space_of(const Block& block) SLUICE_REQUIRES(mutex) {
    return block.segment->is_small() ? small : large;
  }

  // Frees a used block.
  void free(Block* block) SLUICE_REQUIRES(mutex) {
    if (block->pending) [[unlikely]]
      end_pending(*block);
    block->cached = false;
    space_of(*block).free(block);
  }
  // Keeps a freed block of the large space whole until the next large block is freed or requested
  // (often of the same size), or until a search needs all free memory.
  void cache(Block* block) SLUICE_REQUIRES(mutex) {
    free_cached();
    block->cached = true;
    cached_ = block;
  }
  // Returns that block if it has exactly `bytes`. Otherwise frees it and returns null.
  Block* take_cached(std::uint64_t bytes) SLUICE_REQUIRES(mutex) {
    if (cached_ != nullptr && cached_->bytes == bytes) return std::exchange(cached_, nullptr);
    free_cached();
    return nullptr;
  }
  void free_cached() SLUICE_REQUIRES(mutex) {
    if (cached_ != nullptr) free(std::exchange(cached_, nullptr));
  }
  std::uint64_t cached_bytes() const SLUICE_REQUIRES(mutex) {
    return cached_ == nullptr ? 0 : cached_->bytes;
  }
  // Frees the completed pending blocks at the front of the queue.
  void free_completed_front() SLUICE_REQUIRES(mutex) {
    if (!pending.empty()) [[unlikely]]
      free_completed_in_front();
  }
  // Frees every completed pending block, also after one that still waits.
  void free_completed() SLUICE_REQUIRES(mutex);
  void check_invariants() const SLUICE_REQUIRES(mutex);

  const StreamId id;
  device::Stream& stream;
  const bool movable;  // whether its free pages may move to other addresses

  mutable Mutex mutex;
  BlockSpace small SLUICE_GUARDED_BY(mutex);
  BlockSpace large SLUICE_GUARDED_BY(mutex);
  std::vector<std::unique_ptr<AddressSegment>> segments SLUICE_GUARDED_BY(mutex);
  std::deque<PendingFree> pending SLUICE_GUARDED_BY(mutex);  // in the order they were freed
  std::uint64_t pending_bytes SLUICE_GUARDED_BY(mutex) = 0;
  // The calls that no thread's cache served.
  AllocationCounts counts SLUICE_GUARDED_BY(mutex);
  // The other streams of blocks that are used_across.
  std::unordered_map<const Block*, std::vector<StreamId>> other_uses SLUICE_GUARDED_BY(mutex);

 private:
  Block* cached_ SLUICE_GUARDED_BY(mutex) = nullptr;  // see cache()

  void end_pending(Block& block) SLUICE_REQUIRES(mutex);
  void free_completed_in_front() SLUICE_REQUIRES(mutex);

  record::MemoryRecorder* const recorder_;  // null: none
};

}  // namespace sluice::allocator
