// The records of blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/memory_kinds.hpp"
#include "base/mutex.hpp"

namespace sluice::allocator {

class AddressSegment;

enum class BlockKind : std::uint8_t { kUsed, kFree, kHollow };

// Links of neighbours and bins belong to the BlockSpace; what describes the allocation to whoever
// holds the block (its user, or the cache it lies in). One cache line: a request touches several.
struct alignas(64) Block {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  AddressSegment* segment = nullptr;
  union {
    std::uint64_t requested_bytes = 0;  // used
    Block* list_previous;               // free or hollow: in the list of list_next
  };
  Block* list_next = nullptr;  // in a bin, the hollow list, a cache
  Block* previous = nullptr;   // neighbours in the address range; null at its ends
  Block* next = nullptr;
  union {
    std::uint32_t name = 0;  // used
    std::uint32_t bin;       // free or hollow: which list it is in
  };
  Category category = Category::kExternal;
  BlockKind kind = BlockKind::kHollow;
  // Of neither does anything change while somebody holds the block, so they may share a byte.
  bool cached : 1 =
      false;  // used for the space, but freed: kept for the next call by a thread or pool
  bool pending : 1 = false;  // freed, while other streams still use it; by the pool's lock
  bool untold : 1 = false;   // AllocationRequest::untold
  // Recorded as used by another stream: by the pool's lock, while its holders may look at the rest.
  bool used_across = false;
};
static_assert(sizeof(Block) == 64);

// Records are made and never given back, nor do they move: a space keeps those it does not need.
// Thread-safe.
class BlockStore {
 public:
  BlockStore() = default;
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;

  Block* take();

 private:
  static constexpr std::size_t kChunk = 1024;

  Mutex mutex_;
  std::vector<std::unique_ptr<Block[]>> chunks_ SLUICE_GUARDED_BY(mutex_);
  std::size_t taken_count_ SLUICE_GUARDED_BY(mutex_) = 0;
};

}  // namespace sluice::allocator
