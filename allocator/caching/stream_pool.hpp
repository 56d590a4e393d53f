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
#include "allocator/caching/biased_mutex.hpp"
#include "allocator/caching/block_space.hpp"
#include "allocator/record/memory_recorder.hpp"

namespace sluice::allocator {

using StreamId = std::uint32_t;

// A block that its caller gave back while other streams had work on it queued.
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

  BlockSpace& space_for(std::uint64_t bytes) { return bytes <= kSmallBytes ? small : large; }
  BlockSpace& space_of(const Block& block) { return block.segment->is_small() ? small : large; }

  // The lock is held for all of these.

  // A used block becomes free.
  void put_back(Block* block) {
    if (block->pending) [[unlikely]]
      end_pending(*block);
    block->cached = false;
    space_of(*block).give_back(block);
  }
  // A used block of the large space is freed. It stays whole until another comes or is asked for,
  // which is often of the same size, or until somebody wants all that is free.
  void put_back_later(Block* block) {
    put_back_last();
    block->cached = true;
    last_ = block;
  }
  // That block, if it has just so many bytes; else null, and it is put back.
  Block* take_last(std::uint64_t bytes) {
    if (last_ != nullptr && last_->bytes == bytes) return std::exchange(last_, nullptr);
    put_back_last();
    return nullptr;
  }
  void put_back_last() {
    if (last_ != nullptr) put_back(std::exchange(last_, nullptr));
  }
  std::uint64_t last_bytes() const { return last_ == nullptr ? 0 : last_->bytes; }
  // Puts back the pending blocks at the front whose events have happened.
  void settle_front() {
    if (!pending.empty()) [[unlikely]]
      settle_those_in_front();
  }
  // All whose events have happened; one that has not hides none behind it.
  void settle_all();
  void check_invariants() const;

  const StreamId id;
  device::Stream& stream;
  const bool movable;  // its free pages may be given to other addresses

  BiasedMutex mutex;  // guards all below
  BlockSpace small;
  BlockSpace large;
  std::vector<std::unique_ptr<AddressSegment>> segments;
  std::deque<PendingFree> pending;  // in the order they were freed
  std::uint64_t pending_bytes = 0;
  AllocationCounts counts;                                             // of what no cache served
  std::unordered_map<const Block*, std::vector<StreamId>> other_uses;  // of blocks used_across

 private:
  Block* last_ = nullptr;  // see put_back_later()

  void end_pending(Block& block);
  void settle_those_in_front();

  record::MemoryRecorder* const recorder_;  // null: none
};

}  // namespace sluice::allocator
