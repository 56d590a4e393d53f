// What a thread keeps to itself: small blocks that it freed, by exact size and stream, and its part
// of the statistics. Settled with the pools before they grow, so nothing that is kept here can be
// the cause of an out-of-memory.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "allocator/caching/allocation_counts.hpp"
#include "allocator/caching/biased_mutex.hpp"
#include "allocator/caching/block_store.hpp"

namespace sluice::allocator {

class StreamPool;

class alignas(64) ThreadCache {
 public:
  static constexpr std::uint32_t kMaxPerBin = 32;

  BiasedMutex mutex;  // guards all below; taken last, after a pool's

  // A block of exactly `bytes` of `pool`, or null.
  Block* pop(const StreamPool* pool, std::uint64_t bytes) {
    Bin& bin = bins_[index_of(pool, bytes)];
    if (bin.head == nullptr || bin.pool != pool || bin.bytes != bytes) return nullptr;
    Block* const block = bin.head;
    bin.head = block->list_next;
    --bin.count;
    cached_bytes_ -= bytes;
    return block;
  }

  // Keeps `block` of `pool`, or returns false: it is full. What had to make room for it is appended
  // to `evicted`, linked by list_next.
  bool push(const StreamPool* pool, Block* block, std::uint64_t limit_bytes, Block*& evicted) {
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

  // All blocks, linked by list_next; of one pool only where it is given.
  Block* drain(const StreamPool* pool = nullptr) {
    Block* all = nullptr;
    if (cached_bytes_ == 0) return all;
    for (Bin& bin : bins_) {
      if (pool == nullptr || bin.pool == pool) empty(bin, all);
    }
    return all;
  }

  std::uint64_t cached_bytes() const { return cached_bytes_; }

  AllocationCounts counts;  // of what was served here: every allocation of these is a hit

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
  void empty(Bin& bin, Block*& all) {
    while (bin.head != nullptr) {
      Block* const block = bin.head;
      bin.head = block->list_next;
      cached_bytes_ -= block->bytes;
      block->list_next = all;
      all = block;
    }
    bin.count = 0;
  }

  std::array<Bin, 256> bins_{};
  std::uint64_t cached_bytes_ = 0;
};

// The caches of one allocator's threads. Outlives both: a thread that ends hands its cache on to
// the next that comes.
class ThreadCaches {
  struct State;

 public:
  // This thread's; made at its first call, and the mutex biased to it.
  ThreadCache& mine();

 private:
  friend struct ThreadCacheSeats;
  struct State {
    std::mutex mutex;
    std::vector<std::unique_ptr<ThreadCache>> caches;  // guarded by mutex
    std::vector<ThreadCache*> idle;                    // guarded by mutex
    ThreadCache* last = nullptr;  // guarded by mutex: of threads that no longer have one

    ThreadCache* add() {
      idle.reserve(caches.size() + 1);
      return caches.emplace_back(std::make_unique<ThreadCache>()).get();
    }
  };

 public:
  // Every cache, locked while this lives: what they say together is true of one moment.
  class AllLocked {
   public:
    explicit AllLocked(const ThreadCaches& caches)
        : state_(*caches.state_), state_lock_(state_.mutex), locks_(mutexes_of(state_)) {}
    const std::vector<std::unique_ptr<ThreadCache>>& caches() const { return state_.caches; }

   private:
    static std::vector<BiasedMutex*> mutexes_of(const State& state) {
      std::vector<BiasedMutex*> mutexes;
      mutexes.reserve(state.caches.size());
      for (const auto& cache : state.caches) mutexes.push_back(&cache->mutex);
      return mutexes;
    }

    State& state_;
    std::unique_lock<std::mutex> state_lock_;
    BiasedGuests locks_;
  };

 private:
  ThreadCache& find_or_make();

  static std::uint64_t next_serial();
  const std::uint64_t serial_ = next_serial();  // never given twice, unlike an address
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
