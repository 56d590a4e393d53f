// The records of blocks, numbered so that a table of addresses needs four bytes for each.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/memory_kinds.hpp"

namespace sluice {

class AddressSegment;

enum class BlockKind : std::uint8_t { kUsed, kFree, kHollow };

// Links of neighbours and bins belong to the BlockSpace; what describes the allocation to whoever
// holds the block (its user, or the cache it lies in).
//
// What a thread's cache and its hits touch lies in the first cache line, what only the space does
// in the second.
struct alignas(64) Block {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  AddressSegment* segment = nullptr;
  std::uint64_t requested_bytes = 0;
  Block* list_next = nullptr;  // in a bin, the hollow list, a cache
  Block* previous = nullptr;   // neighbours in the address range; null at its ends
  Block* next = nullptr;
  std::uint32_t name = 0;
  Category category = Category::kExternal;
  bool cached = false;       // used for the space, but held by a thread's cache
  bool pending = false;      // freed, while other streams still use it
  bool used_across = false;  // recorded as used by another stream

  Block* list_previous = nullptr;
  std::uint32_t id = 0;
  BlockKind kind = BlockKind::kHollow;
};
static_assert(offsetof(Block, list_previous) == 64);

// Records are made and never given back: a space keeps those it does not need. Thread-safe: take
// locks; at() does not, because a record never moves.
class BlockStore {
 public:
  BlockStore();
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;

  Block* take();
  Block* at(std::uint32_t id) const {
    return &chunks_[id / kChunk].load(std::memory_order_acquire)[id % kChunk];
  }

 private:
  static constexpr std::uint32_t kChunk = 1024;
  static constexpr std::uint32_t kMaxChunks = 1U << 16U;  // 64 million blocks

  std::mutex mutex_;
  // A chunk is published once, before any id of it is given out.
  std::unique_ptr<std::atomic<Block*>[]> chunks_;
  std::vector<std::unique_ptr<Block[]>> owned_;  // guarded by mutex_
  std::uint32_t taken_count_ = 0;                // guarded by mutex_
};

}  // namespace sluice
