// A thread's own cache: small blocks that it freed, by exact size and stream, and its part of the
// statistics. Before a pool grows, every cache is emptied into the pools: a cached block is never
// the cause of an out-of-memory.
//
// Each cache has a mutex that its thread takes for every call, and nearly always alone: an
// uncontended lock and unlock. Other threads take it to empty the cache and to read statistics.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "allocator/caching/allocation_counts.hpp"
#include "allocator/caching/block_store.hpp"
#include "base/mutex.hpp"

namespace sluice::allocator {

class StreamPool;

// A table of 256 bins without chains: a pool and an exact size hash to one bin, which keeps up to
// kMaxPerBin blocks of one pool and size. A block of another size or pool empties the bin first.
// Every operation is O(1), except drain().
//
// Invariants:
//   1. All blocks of a bin have the bin's pool and size, and are marked `cached`.
//   2. A bin has at most kMaxPerBin blocks; cached_bytes_ is the sum over all bins, at most the
//      limit given to push().
//   3. A cached block is used for its BlockSpace: its neighbours cannot merge with it.
class alignas(64) ThreadCache {
 public:
  static constexpr std::uint32_t kMaxPerBin = 32;

  Mutex mutex;  // taken last, after a pool's

  // Returns a block of exactly `bytes` of `pool`, or null.
  Block* pop(const StreamPool* pool, std::uint64_t bytes) SLUICE_REQUIRES(mutex) {
    Bin& bin = bins_[index_of(pool, bytes)];
    if (bin.head == nullptr || bin.pool != pool || bin.bytes != bytes) return nullptr;
    Block* const block = bin.head;
    bin.head = block->list_next;
    --bin.count;
    cached_bytes_ -= bytes;
    return block;
  }

  // Keeps `block` of `pool`. Returns false when the cache is full. Appends the blocks that had to
  // make room for it to `evicted`, linked by list_next.
  bool push(const StreamPool* pool, Block* block, std::uint64_t limit_bytes, Block*& evicted)
      SLUICE_REQUIRES(mutex) {
    if (cached_bytes_ + block->bytes > limit_bytes) return false;
    Bin& bin = bins_[index_of(pool, block->bytes)];
    if (bin.head != nullptr && (bin.pool != pool || bin.bytes != block->bytes)) empty(bin, evicted);
    if (bin.head == nullptr) {
      bin.pool = pool;
      bin.bytes = block->bytes;
      bin.count = 0;
    }
    if (bin.count == kMaxPerBin) return false;
    block->list_next = bin.head;
    bin.head = block;
    ++bin.count;
    cached_bytes_ += block->bytes;
    return true;
  }

  // Removes and returns all blocks, linked by list_next; those of one pool when it is given.
  Block* drain(const StreamPool* pool = nullptr) SLUICE_REQUIRES(mutex) {
    Block* all = nullptr;
    if (cached_bytes_ == 0) return all;
    for (Bin& bin : bins_) {
      if (pool == nullptr || bin.pool == pool) empty(bin, all);
    }
    return all;
  }

  std::uint64_t cached_bytes() const SLUICE_REQUIRES(mutex) { return cached_bytes_; }

  // The calls that this cache served; every allocation among them is a hit.
  AllocationCounts counts SLUICE_GUARDED_BY(mutex);

 private:
  struct Bin {
    const StreamPool* pool = nullptr;
    std::uint64_t bytes = 0;
    Block* head = nullptr;
    std::uint32_t count = 0;
  };

  static std::size_t index_of(const StreamPool* pool, std::uint64_t bytes) {
    const std::uint64_t mixed = (bytes / 512 + reinterpret_cast<std::uint64_t>(pool) / 64) *
                                std::uint64_t{0x9E3779B97F4A7C15};  // 2^64 / golden ratio
    return mixed >> 56U;
  }
  void empty(Bin& bin, Block*& all) SLUICE_REQUIRES(mutex) {
    while (bin.head != nullptr) {
      Block* const block = bin.head;
      bin.head = block->list_next;
      cached_bytes_ -= block->bytes;
      block->list_next = all;
      all = block;
    }
    bin.count = 0;
  }

  std::array<Bin, 256> bins_ SLUICE_GUARDED_BY(mutex){};
  std::uint64_t cached_bytes_ SLUICE_GUARDED_BY(mutex) = 0;
};

// The caches of one allocator's threads. A thread that ends leaves its cache, with its blocks, to
// the next thread that starts.
class ThreadCaches {
  struct State;

 public:
  // This thread's cache; its first call makes it.
  ThreadCache& mine();

 private:
  friend struct ThreadCacheSeats;
  struct State {
    Mutex mutex;
    std::vector<std::unique_ptr<ThreadCache>> caches SLUICE_GUARDED_BY(mutex);
    std::vector<ThreadCache*> idle SLUICE_GUARDED_BY(mutex);
    ThreadCache* last SLUICE_GUARDED_BY(mutex) = nullptr;  // shared by threads that are ending

    ThreadCache* add() SLUICE_REQUIRES(mutex) {
      idle.reserve(caches.size() + 1);
      return caches.emplace_back(std::make_unique<ThreadCache>()).get();
    }
  };

 public:
  // Holds every cache's lock while it lives, so that their figures are of one moment. The compiler
  // cannot follow a set of locks: users say cache->mutex.assert_held().
  class AllLocked {
   public:
    explicit AllLocked(const ThreadCaches& caches) SLUICE_NO_THREAD_SAFETY_ANALYSIS
        : state_(*caches.state_) {
      state_.mutex.lock();
      for (const auto& cache : state_.caches) cache->mutex.lock();
    }
    ~AllLocked() SLUICE_NO_THREAD_SAFETY_ANALYSIS {
      for (const auto& cache : state_.caches) cache->mutex.unlock();
      state_.mutex.unlock();
    }
    AllLocked(const AllLocked&) = delete;
    AllLocked& operator=(const AllLocked&) = delete;
    const std::vector<std::unique_ptr<ThreadCache>>& caches() const
        SLUICE_NO_THREAD_SAFETY_ANALYSIS {
      return state_.caches;
    }

   private:
    State& state_;
  };

 private:
  ThreadCache& find_or_make();

  static std::uint64_t next_serial();
  const std::uint64_t serial_ = next_serial();  // never reused, unlike an address
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

namespace detail {
struct LastThreadCache {
  std::uint64_t serial = 0;
  ThreadCache* cache = nullptr;
};
extern constinit thread_local LastThreadCache last_thread_cache;
}  // namespace detail

inline ThreadCache& ThreadCaches::mine() {
  const detail::LastThreadCache& last = detail::last_thread_cache;
  return last.serial == serial_ ? *last.cache : find_or_make();
}

}  // namespace sluice::allocator
