// The records of blocks, and their storage.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/memory_kinds.hpp"
#include "base/mutex.hpp"

namespace sluice::allocator {

class AddressSegment;

enum class BlockKind : std::uint8_t { kUsed, kFree, kUnbacked };

// A block's record. The links to neighbours and in bins belong to the BlockSpace. The description
// of the allocation belongs to the block's owner: its user, or the cache that holds it. It is one
// cache line, because a request touches several records.
struct alignas(64) Block {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  AddressSegment* segment = nullptr;
  union {
    std::uint64_t requested_bytes = 0;  // used
    Block* list_previous;               // free or unbacked: in the list of list_next
  };
  Block* list_next = nullptr;  // in a bin, the unbacked list, a cache
  Block* previous = nullptr;   // neighbours in the address range; null at its ends
  Block* next = nullptr;
  union {
    std::uint32_t name = 0;  // used
    std::uint32_t bin;       // free or unbacked: which list it is in
  };
  Category category = Category::kExternal;
  BlockKind kind = BlockKind::kUnbacked;
  // These bits change only when the block changes owner, so they may share a byte.
  // Freed, but kept whole by a thread's cache or a pool for the next call. Used for the BlockSpace.
  bool cached : 1 = false;
  bool pending : 1 = false;     // freed, but other streams still use it; guarded by the pool's lock
  bool unrecorded : 1 = false;  // AllocationRequest::unrecorded
  // Used by another stream. Guarded by the pool's lock, in a byte of its own: the block's owner may
  // read the other bits at the same time.
  bool used_across = false;
};
static_assert(sizeof(Block) == 64);

// Allocates records. They never move and are never returned: a space keeps its unused ones.
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
