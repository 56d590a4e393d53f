// Device memory for callers with unknown future requests: host frameworks, dynamic shapes.
//
// Each stream has a pool. The pool reuses its freed blocks at once, in stream order, and takes the
// smallest free block that is large enough. Pages (2 MiB) back the addresses. If a pool has
// no fitting block, free pages move before the pool grows: first pages of its own free blocks, then
// pages of other streams. Such a page is mapped again at the new addresses, and its old addresses
// turn unbacked. Their mapping stays, so a page that comes back needs no driver call; a loop that
// repeats soon makes none. Before the requester's stream uses a page of another stream, it waits
// for an event of that stream. The host waits only if addresses must show another page while work
// is queued on them. Pages of blocks in use never move, nor pages of streams added as not movable
// (registered with NCCL, captured in graphs).
//
// A request runs out of memory only if no sum of free pages suffices, after waiting (by event) for
// the smallest sufficient set of blocks that other streams still use.
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
  Category category = Category::kExternal;  // the ledger charges pages to it
  // Pages that may move between two begin_step() instead of growth; beyond that the pool grows if
  // it can. Default: twice the pages that it holds, at least 8,192 (about 0.4 s, at 50 us of the
  // driver for each).
  std::optional<std::uint64_t> remap_budget_pages = std::nullopt;
  // The pool grows without moving pages until it holds the peak of memory in use plus this share.
  // A little room saves most moves.
  double growth_slack = 1.0 / 128;
  std::uint64_t thread_cache_bytes = 4 * kMiB;  // for each thread
  std::uint64_t segment_bytes = 64 * kGiB;      // addresses reserved at a time
  record::MemoryRecorder* recorder = nullptr;   // receives all events; must outlive the allocator
};

struct AllocationRequest {
  std::uint64_t bytes = 0;
  StreamId stream = 0;  // the block is reused in this stream's order
  Category category = Category::kExternal;
  std::uint32_t name = 0;   // the caller's number for a site or tag
  bool unrecorded = false;  // hide the block from the recorder; the caller records its contents
};

struct CachingAllocatorStatistics {
  std::uint64_t live_bytes = 0;  // requested and not freed
  // Each thread and stream may add an error of 1/1,024 of the device, between 1 and 128 MiB.
  std::uint64_t peak_live_bytes = 0;
  std::array<std::uint64_t, kCategoryCount> live_by_category{};
  std::uint64_t used_bytes = 0;      // live blocks, rounded
  std::uint64_t pending_bytes = 0;   // freed, still used by other streams
  std::uint64_t cached_bytes = 0;    // in caches of threads, and the last large block of each pool
  std::uint64_t free_bytes = 0;      // in free blocks
  std::uint64_t reserved_bytes = 0;  // pages held
  std::uint64_t peak_reserved_bytes = 0;
  std::uint64_t allocation_count = 0;
  std::uint64_t free_count = 0;
  std::uint64_t cache_hits = 0;        // served by a thread's cache
  std::uint64_t slow_count = 0;        // not served by a free block
  std::uint64_t fresh_pages = 0;       // taken from the page pool
  std::uint64_t remaps = 0;            // pages mapped again at other addresses
  std::uint64_t reclaims = 0;          // pages back at addresses that still map them: no call
  std::uint64_t flushes = 0;           // calls of release_cached()
  std::uint64_t event_waits = 0;       // a stream made to wait for another
  std::uint64_t synchronisations = 0;  // the host waited
};

// A request tries, in this order: (1) the cache of its thread; (2) its stream's pool; (3) the pool
// again, after the thread's cached blocks have been freed into it; (4) under all locks: a free
// block after all caches and completed pending blocks are free; (5) moved or fresh pages
// (page_mover.hpp); (6) the same after waiting for pending blocks. Steps 1 to 3 take one or two
// uncontended locks.
//
// Invariants (check_invariants() tests 1 to 4):
//   1. Every used or free byte lies on a page that its entry holds, and no unbacked byte does. A
//   page
//      is held by one entry at most.
//   2. A used block is live, cached (by a thread or a pool) or pending. The address table refers to
//      it in all three states.
//   3. A pending block is in its pool's queue with an event of each other stream that uses it.
//   4. held_pages_ counts the pages that back all spaces; spare_ has the records without a page.
//   5. Free memory of a pool may be reused at once in the order of its stream. Another stream gets
//      it only after an event recorded after all work that may use it.
//   6. Locks are taken in this order: growth_mutex_, pools by id, caches. A block is allocated and
//      described under one lock, so a report under all locks sees no undescribed block.
//   7. A call that throws has neither allocated nor freed a block.
class CachingAllocator {
 public:
  // This allocator must be the only user of `pages`. Device and pages must outlive it.
  CachingAllocator(device::Device& device, PagePool& pages,
                   const CachingAllocatorOptions& options = {});
  // Waits for the streams, then returns all pages, including those of live blocks.
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  static constexpr std::uint32_t kMaxStreams = 1024;
  // The stream must outlive the allocator. Throws InternalError after the last one.
  StreamId add_stream(device::Stream& stream, bool movable = true);

  // Returns null for 0 bytes. Throws OutOfMemoryReported (oom_report.hpp).
  std::byte* allocate(const AllocationRequest& request);
  // Returns null if there is no room, without a report.
  std::byte* try_allocate(const AllocationRequest& request);
  // Does nothing for null. Throws InternalError if allocate() did not return `data` or it is freed.
  void free(std::byte* data);
  // Tells that `stream` uses the block too. After free() its memory is not reused before the work
  // then queued on `stream` is done.
  void record_use(std::byte* data, StreamId stream);
  // Whether the address lies in one of the allocator's segments.
  bool holds(const void* data) const;
  // The size of the block, up to 511 bytes more than requested.
  std::uint64_t block_bytes(const std::byte* data) const;

  void begin_step();  // a new remap budget

  record::MemoryRecorder* recorder() const { return options_.recorder; }  // null: none

  // Returns every page that no block needs, except those of streams that are not movable. The host
  // waits for the streams.
  void release_cached();

  CachingAllocatorStatistics statistics();
  // The segments and blocks now, and the recorder's events and names. An unrecorded block appears
  // as one block.
  record::MemorySnapshot snapshot();
  // Throws InternalError if an invariant is broken. No thread may use the allocator meanwhile.
  void check_invariants();

 private:
  friend class PageMover;

  struct SegmentEntry {
    std::uint64_t base;
    std::uint64_t bytes;
    const AddressSegment* segment;
  };

  const SegmentEntry* find_segment(std::uint64_t address) const;  // null: none
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
  void record_free(const Block& block);  // Precondition: there is a recorder
  void free_blocks(Block* list);
  bool free_thread_cache(StreamPool& pool);
  void drain_caches() SLUICE_REQUIRES(growth_mutex_);
  void count(AllocationCounts& counts, Category category, std::int64_t bytes);
  void mark_allocated(AllocationCounts& counts, Block& block, const AllocationRequest& request);
  void flush_counts(AllocationCounts& counts);
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
  const std::int64_t flush_bytes_;
  ThreadCaches caches_;
  BlockStore store_;

  // growth_mutex_ first, then the pools' in the order of their ids, then a cache's.
  Mutex growth_mutex_;
  std::deque<StreamPool> pools_ SLUICE_GUARDED_BY(growth_mutex_);
  std::atomic<std::uint32_t> pool_count_ = 0;
  std::unique_ptr<std::atomic<StreamPool*>[]> pool_table_;

  // All segments by address, for find_block(). The table is replaced as a whole; old tables are
  // kept until the end, because another thread may read them.
  using SegmentTable = std::vector<SegmentEntry>;
  std::atomic<const SegmentTable*> segments_ = nullptr;
  std::vector<std::unique_ptr<SegmentTable>> segment_tables_ SLUICE_GUARDED_BY(growth_mutex_);

  std::deque<PhysicalPage> physical_ SLUICE_GUARDED_BY(growth_mutex_);
  std::vector<PhysicalPage*> spare_ SLUICE_GUARDED_BY(growth_mutex_);  // records without memory
  std::uint64_t step_remaps_ SLUICE_GUARDED_BY(growth_mutex_) = 0;     // since begin_step()
  // Up to this many pages the pool grows without moving any: see growth_slack.
  std::uint64_t unstitched_pages_ SLUICE_GUARDED_BY(growth_mutex_) = 0;
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
