// Device memory for callers whose future is not known: host frameworks, dynamic shapes.
//
// Each stream has a pool of its own: what it frees it reuses at once, in stream order, and blocks
// come from the smallest free one that is large enough. Behind the addresses lie pages (2 MiB). A
// pool that has no block left takes, before it grows: pages from anywhere in its free blocks, then
// from those of other streams; a page so taken is mapped a second time where it is needed, and its
// old addresses turn hollow. The old mapping stays, so a page that comes back needs no call of the
// driver: a loop that repeats soon runs without any. Across streams the taker's stream waits for an
// event of the giver's; the host waits for none (but in a corner that ARCHITECTURE names). Never
// moved: pages of blocks that are not free, and those of streams added as not movable (registered
// with NCCL, captured in graphs).
//
// Out of memory comes only when no sum of free pages suffices, after waiting (by event) for the
// smallest sufficient set of blocks that other streams still use.
//
// Blocks are multiples of 512 bytes, aligned to 512. Thread-safe. Small blocks (to 1 MiB) go
// through a cache per thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "allocator/caching/stream_pool.hpp"
#include "allocator/caching/thread_cache.hpp"
#include "allocator/page_pool.hpp"
#include "allocator/record/memory_recorder.hpp"
#include "base/mutex.hpp"
#include "device/device.hpp"

namespace sluice::allocator {

struct OomReport;

struct CachingAllocatorOptions {
  Category category = Category::kExternal;  // what the ledger charges its pages to
  // Pages mapped a second time between two begin_step() in order not to grow; beyond it the pool
  // grows while it can. Not given: twice as many as it holds, at least 8,192 (some 0.4 s of a
  // driver that takes 50 us for each).
  std::optional<std::uint64_t> remap_budget_pages = std::nullopt;
  // Below the most that was in use at once, and this share more, it grows rather than move pages: a
  // little room saves most of the moves.
  double growth_slack = 1.0 / 128;
  std::uint64_t thread_cache_bytes = 4 * kMiB;  // for each thread
  std::uint64_t segment_bytes = 64 * kGiB;      // addresses reserved at a time
  record::MemoryRecorder* recorder =
      nullptr;  // what happens is written there; must outlive the allocator
};

struct AllocationRequest {
  std::uint64_t bytes = 0;
  StreamId stream = 0;  // whose order the block's reuse follows
  Category category = Category::kExternal;
  std::uint32_t name = 0;  // the caller's number for a site or tag
  bool untold = false;     // not to the recorder: the caller tells it what lies in the block
};

struct CachingAllocatorStatistics {
  std::uint64_t live_bytes = 0;  // requested and not freed
  // To within a 1,024th of the device, at least 1 and at most 128 MiB, for each thread and stream.
  std::uint64_t peak_live_bytes = 0;
  std::array<std::uint64_t, kCategoryCount> live_by_category{};
  std::uint64_t used_bytes = 0;      // live blocks, rounded
  std::uint64_t pending_bytes = 0;   // freed, still used by other streams
  std::uint64_t cached_bytes = 0;    // in caches of threads, and what each stream freed last
  std::uint64_t free_bytes = 0;      // in free blocks
  std::uint64_t reserved_bytes = 0;  // pages held
  std::uint64_t peak_reserved_bytes = 0;
  std::uint64_t allocation_count = 0;
  std::uint64_t free_count = 0;
  std::uint64_t cache_hits = 0;        // served by a thread's cache
  std::uint64_t slow_count = 0;        // not served by a free block
  std::uint64_t fresh_pages = 0;       // taken from the page pool
  std::uint64_t remaps = 0;            // pages mapped again at other addresses
  std::uint64_t reclaims = 0;          // pages back at addresses that still showed them: no call
  std::uint64_t flushes = 0;           // release_cached() and what amounts to it
  std::uint64_t event_waits = 0;       // a stream made to wait for another
  std::uint64_t synchronisations = 0;  // the host waited
};

class CachingAllocator {
 public:
  // pages: used by this allocator alone while it lives. Device and pages must outlive it.
  CachingAllocator(device::Device& device, PagePool& pages,
                   const CachingAllocatorOptions& options = {});
  // Waits for the streams, then gives all pages back, live blocks among them.
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // The stream must outlive the allocator.
  StreamId add_stream(device::Stream& stream, bool movable = true);

  // 0 bytes: null. Throws OutOfMemoryReported (oom_report.hpp).
  std::byte* allocate(const AllocationRequest& request);
  // Null where there is no room: nobody is asked for any, and nothing reported.
  std::byte* try_allocate(const AllocationRequest& request);
  // Null: nothing. Throws InternalError for what allocate() did not return or was freed already.
  void free(std::byte* data);
  // `stream` uses the block too: after free() its memory is not reused before the work then queued
  // there is done.
  void record_use(std::byte* data, StreamId stream);
  // The bytes that the block holds, which may be up to 511 more than asked.
  std::uint64_t block_bytes(const std::byte* data) const;

  void begin_step();  // a new remap budget

  record::MemoryRecorder* recorder() const { return options_.recorder; }  // null: none

  // Gives back every page that no block needs, those of streams that are not movable excepted. The
  // host waits for the streams.
  void release_cached();

  CachingAllocatorStatistics statistics();
  // Segments and blocks as they stand (an untold one is one block), and the recorder's events and
  // names.
  record::MemorySnapshot snapshot();
  // Throws InternalError. The caller must not use the allocator meanwhile.
  void check_invariants();

 private:
  friend class PageMover;

  Block* find_block(const void* data) const;
  Block* allocate_from(StreamPool& pool, const AllocationRequest& request, std::uint64_t bytes);
  [[noreturn, gnu::cold]] void refuse(const AllocationRequest& request);
  [[gnu::noinline]] Block* allocate_otherwise(StreamPool& pool, const AllocationRequest& request,
                                              std::uint64_t bytes);
  Block* allocate_slowly(StreamPool& pool, const AllocationRequest& request);
  // These hold the pools' locks too, as PoolLocks takes them.
  Block* find_under_locks(StreamPool& pool, std::uint64_t bytes)
      SLUICE_REQUIRES(growth_mutex_, pool.mutex);
  Block* allocate_under_locks(StreamPool& pool, std::uint64_t bytes)
      SLUICE_REQUIRES(growth_mutex_, pool.mutex);
  [[noreturn]] void throw_out_of_memory(const AllocationRequest& request)
      SLUICE_REQUIRES(growth_mutex_);
  OomReport report_out_of_memory(const AllocationRequest& request) SLUICE_REQUIRES(growth_mutex_);
  record::MemorySnapshot snapshot_locked()
      SLUICE_REQUIRES(growth_mutex_);  // with the caches' locks too
  void free_pending(StreamPool& pool, Block* block) SLUICE_REQUIRES(pool.mutex);
  void record(record::MemoryAction action, const Block& block);
  void record_free(const Block& block);  // where there is a recorder
  void put_back_all(Block* list);
  bool put_back_mine(StreamPool& pool);
  void drain_caches() SLUICE_REQUIRES(growth_mutex_);
  void count(AllocationCounts& counts, Category category, std::int64_t bytes);
  void hand_out(AllocationCounts& counts, Block& block, const AllocationRequest& request);
  void settle(AllocationCounts& counts);
  void release_cached_locked() SLUICE_REQUIRES(growth_mutex_);
  void publish_segments() SLUICE_REQUIRES(growth_mutex_);
  std::uint64_t remap_budget() const SLUICE_REQUIRES(growth_mutex_);

  // Holds the lock of every pool while it lives. The compiler cannot follow a set of locks: users
  // say pool.mutex.assert_held().
  class PoolLocks {
   public:
    explicit PoolLocks(std::deque<StreamPool>& pools) SLUICE_NO_THREAD_SAFETY_ANALYSIS
        : pools_(pools) {
      for (StreamPool& pool : pools_) pool.mutex.lock();
    }
    ~PoolLocks() SLUICE_NO_THREAD_SAFETY_ANALYSIS {
      for (StreamPool& pool : pools_) pool.mutex.unlock();
    }
    PoolLocks(const PoolLocks&) = delete;
    PoolLocks& operator=(const PoolLocks&) = delete;

   private:
    std::deque<StreamPool>& pools_;
  };

  device::Device& device_;
  PagePool& pages_;
  const CachingAllocatorOptions options_;
  const std::uint64_t page_bytes_;
  const std::uint64_t capacity_bytes_;  // of the device
  const std::int64_t settle_bytes_;
  ThreadCaches caches_;
  BlockStore store_;

  // growth_mutex_ first, then the pools' in the order of their ids, then a cache's.
  Mutex growth_mutex_;
  std::deque<StreamPool> pools_ SLUICE_GUARDED_BY(growth_mutex_);
  std::atomic<std::uint32_t> pool_count_ = 0;
  static constexpr std::uint32_t kMaxPools = 1024;
  std::unique_ptr<std::atomic<StreamPool*>[]> pool_table_;

  // All segments by address, for find_block(): replaced as a whole, kept until the end.
  struct SegmentEntry {
    std::uint64_t base;
    std::uint64_t bytes;
    const AddressSegment* segment;
  };
  using SegmentTable = std::vector<SegmentEntry>;
  std::atomic<const SegmentTable*> segments_ = nullptr;
  std::vector<std::unique_ptr<SegmentTable>> segment_tables_ SLUICE_GUARDED_BY(growth_mutex_);

  std::deque<PhysicalPage> physical_ SLUICE_GUARDED_BY(growth_mutex_);
  std::vector<PhysicalPage*> spare_ SLUICE_GUARDED_BY(growth_mutex_);  // records without memory
  std::uint64_t step_remaps_ SLUICE_GUARDED_BY(growth_mutex_) = 0;     // since begin_step()
  std::uint64_t unstitched_pages_ SLUICE_GUARDED_BY(growth_mutex_) =
      0;  // held without moving any: see growth_slack
  std::uint64_t held_pages_ SLUICE_GUARDED_BY(growth_mutex_) = 0;
  std::uint64_t peak_pages_ SLUICE_GUARDED_BY(growth_mutex_) = 0;
  std::uint64_t slow_count_ SLUICE_GUARDED_BY(growth_mutex_) = 0;
  std::uint64_t fresh_pages_ SLUICE_GUARDED_BY(growth_mutex_) = 0;
  std::uint64_t remaps_ SLUICE_GUARDED_BY(growth_mutex_) = 0;
  std::uint64_t reclaims_ SLUICE_GUARDED_BY(growth_mutex_) = 0;
  std::uint64_t flushes_ SLUICE_GUARDED_BY(growth_mutex_) = 0;
  std::uint64_t event_waits_ SLUICE_GUARDED_BY(growth_mutex_) = 0;
  std::uint64_t synchronisations_ SLUICE_GUARDED_BY(growth_mutex_) = 0;

  alignas(64) std::atomic<std::int64_t> live_bytes_ = 0;
  std::atomic<std::int64_t> peak_live_bytes_ = 0;
};

}  // namespace sluice::allocator
