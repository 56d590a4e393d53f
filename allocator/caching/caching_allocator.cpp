// The fast path of allocate() and free() touches a thread's cache or one pool, under one lock; the
// header lists the steps. Counts are kept next to that lock and flushed to the total only when they
// have changed by flush_bytes_, so that threads do not share a cache line. find_block() takes no
// lock: it reads an immutable table of segments, then the segment's table of blocks.
//
// The file has 515 lines because every path of a request ends in the same few locked members.
//
// The slow path takes growth_mutex_ and all pools' locks. Before it looks for memory it frees the
// threads' caches and all completed pending blocks, so cached memory never causes an out-of-memory.
// Below the peak of use plus growth_slack it grows; above, it waits for pending blocks or moves
// pages first, and grows only if the remap budget is spent. A free of a block that other streams
// used records an event on each of them and puts the block into the pool's pending queue.
#include "allocator/caching/caching_allocator.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "allocator/caching/page_mover.hpp"
#include "base/error.hpp"
#include "base/log.hpp"

namespace sluice::allocator {
namespace {

// A thread or stream adds its count to the total when it has changed by this much: seldom enough
// for large blocks, too.
std::int64_t flush_bytes_of(std::uint64_t capacity_bytes) {
  return static_cast<std::int64_t>(std::clamp(capacity_bytes / 1024, 1 * kMiB, 128 * kMiB));
}

std::uint64_t address_of(const void* data) {
  return reinterpret_cast<std::uint64_t>(data);
}

}  // namespace

CachingAllocator::CachingAllocator(device::Device& device, PagePool& pages,
                                   const CachingAllocatorOptions& options)
    : device_(device),
      pages_(pages),
      options_(options),
      page_bytes_(pages.page_bytes()),
      capacity_bytes_(device.facts().capacity_bytes),
      flush_bytes_(flush_bytes_of(capacity_bytes_)),
      pool_table_(std::make_unique<std::atomic<StreamPool*>[]>(kMaxStreams)) {
  segment_tables_.push_back(std::make_unique<SegmentTable>());
  segments_.store(segment_tables_.back().get());
}

CachingAllocator::~CachingAllocator() {
  for (StreamPool& pool : pools_) {
    try {
      pool.stream.synchronize(Deadline::after_seconds(kDefaultDeadlineSeconds));
    } catch (const Error& error) {
      log(LogLevel::kWarning, std::string("caching allocator: at its end, ") + error.what());
    }
  }
  for (StreamPool& pool : pools_) pool.segments.clear();  // unmaps before the pages are returned
  for (const PhysicalPage& page : physical_) {
    if (page.handle != nullptr) pages_.put_back(page.handle);
  }
}

StreamId CachingAllocator::add_stream(device::Stream& stream, bool movable) {
  const MutexLock growth(growth_mutex_);
  const auto id = static_cast<StreamId>(pools_.size());
  SLUICE_CHECK_MSG(id < kMaxStreams, "more than 1,024 streams");
  pools_.emplace_back(id, stream, movable, store_, page_bytes_, options_.recorder);
  pool_table_[id].store(&pools_.back(), std::memory_order_release);
  pool_count_.store(id + 1, std::memory_order_release);
  return id;
}

// Finds the block of an address, without a lock. The caller must own the block.
const CachingAllocator::SegmentEntry* CachingAllocator::find_segment(std::uint64_t address) const {
  // The table was published before any address of its segments was allocated. Segments are few.
  const SegmentTable& table = *segments_.load(std::memory_order_acquire);
  auto entry = table.end();
  if (table.size() <= 8) [[likely]] {
    while (entry != table.begin() && std::prev(entry)->base > address) --entry;
  } else {
    entry = std::upper_bound(
        table.begin(), table.end(), address,
        [](std::uint64_t value, const SegmentEntry& after) { return value < after.base; });
  }
  if (entry == table.begin()) return nullptr;
  --entry;
  return address - entry->base < entry->bytes ? &*entry : nullptr;
}

bool CachingAllocator::holds(const void* data) const {
  return find_segment(address_of(data)) != nullptr;
}

Block* CachingAllocator::find_block(const void* data) const {
  const std::uint64_t address = address_of(data);
  if (const SegmentEntry* const entry = find_segment(address)) {
    Block* const block = entry->segment->find_block(address);
    if (block != nullptr) {
      SLUICE_CHECK_MSG(!block->cached && !block->pending, "freed twice");
      return block;
    }
  }
  SLUICE_CHECK_MSG(false, "not the address of a block that this allocator has in use");
  return nullptr;
}

// Builds a new table of all segments and replaces the old one. Old tables stay: readers use them
// without a lock.
void CachingAllocator::publish_segments() {
  auto table = std::make_unique<SegmentTable>();
  for (const StreamPool& pool : pools_) {
    pool.mutex.assert_held();
    for (const auto& segment : pool.segments) {
      table->push_back({segment->base(), segment->bytes(), segment.get()});
    }
  }
  std::sort(table->begin(), table->end(),
            [](const SegmentEntry& a, const SegmentEntry& b) { return a.base < b.base; });
  segment_tables_.push_back(std::move(table));
  segments_.store(segment_tables_.back().get(), std::memory_order_release);
}

// Counts an allocation or, when bytes < 0, a free. The caller holds the lock of the counts.
void CachingAllocator::count(AllocationCounts& counts, Category category, std::int64_t bytes) {
  ++(bytes < 0 ? counts.free_count : counts.allocation_count);
  counts.live_by_category[static_cast<std::size_t>(category)] += bytes;
  const std::int64_t unflushed = counts.unflushed_bytes + bytes;
  counts.unflushed_bytes = unflushed;
  if (unflushed >= flush_bytes_ || unflushed <= -flush_bytes_) [[unlikely]]
    flush_counts(counts);
}

// The caller holds the lock of the counts, a cache's or the pool's. Either keeps away a thread that
// reads the descriptions of all blocks.
void CachingAllocator::mark_allocated(AllocationCounts& counts, Block& block,
                                      const AllocationRequest& request) {
  block.cached = false;
  block.requested_bytes = request.bytes;
  block.category = request.category;
  block.name = request.name;
  block.unrecorded = request.unrecorded;
  count(counts, request.category, static_cast<std::int64_t>(request.bytes));
  if (options_.recorder != nullptr) [[unlikely]]
    record(record::MemoryAction::kAlloc, block);
}

void CachingAllocator::record(record::MemoryAction action, const Block& block) {
  if (options_.recorder == nullptr || block.unrecorded) return;
  options_.recorder->record(action, block.segment->pool().id, block.address, block.requested_bytes,
                            block.category, block.name);
}

void CachingAllocator::record_free(const Block& block) {
  if (block.unrecorded) return;
  options_.recorder->record_free(block.segment->pool().id, block.address, block.requested_bytes,
                                 block.category, block.name);
}

// Adds the counts' change to the total and raises the peak.
void CachingAllocator::flush_counts(AllocationCounts& counts) {
  const std::int64_t change = std::exchange(counts.unflushed_bytes, 0);
  // Relaxed: no other data depends on the totals.
  const std::int64_t live = live_bytes_.fetch_add(change, std::memory_order_relaxed) + change;
  std::int64_t peak = peak_live_bytes_.load(std::memory_order_relaxed);
  while (live > peak &&
         !peak_live_bytes_.compare_exchange_weak(peak, live, std::memory_order_relaxed)) {
  }
}

std::byte* CachingAllocator::allocate(const AllocationRequest& request) {
  if (request.bytes == 0) return nullptr;
  SLUICE_CHECK_MSG(request.stream < pool_count_.load(std::memory_order_acquire),
                   "a stream that was not added");
  StreamPool& pool = *pool_table_[request.stream].load(std::memory_order_acquire);
  if (request.bytes > capacity_bytes_) [[unlikely]]
    refuse(request);
  const std::uint64_t bytes = round_up(request.bytes, BlockSpace::kAlignment);
  Block* block = nullptr;
  if (bytes <= StreamPool::kSmallBytes) {
    ThreadCache& cache = caches_.mine();
    const MutexLock lock(cache.mutex);
    block = cache.pop(&pool, bytes);
    if (block != nullptr) mark_allocated(cache.counts, *block, request);
  }
  if (block == nullptr) block = allocate_from(pool, request, bytes);
  if (block == nullptr) [[unlikely]]
    block = allocate_otherwise(pool, request, bytes);
  return reinterpret_cast<std::byte*>(block->address);
}

// A request above the device's capacity: no addresses are reserved for it, and no sum can overflow.
void CachingAllocator::refuse(const AllocationRequest& request) {
  const MutexLock growth(growth_mutex_);
  const PoolLocks locks(pools_);
  drain_caches();  // so that the report counts free memory as after a search
  throw_out_of_memory(request);
}

// Tries the pool again with this thread's cached blocks in it, then takes the slow path.
Block* CachingAllocator::allocate_otherwise(StreamPool& pool, const AllocationRequest& request,
                                            std::uint64_t bytes) {
  if (bytes <= StreamPool::kSmallBytes && free_thread_cache(pool)) {
    if (Block* const block = allocate_from(pool, request, bytes)) return block;
  }
  return allocate_slowly(pool, request);
}

// Takes a block from the pool, or returns null. bytes: request.bytes, rounded up.
Block* CachingAllocator::allocate_from(StreamPool& pool, const AllocationRequest& request,
                                       std::uint64_t bytes) {
  const MutexLock lock(pool.mutex);
  pool.free_completed_front();
  Block* block = bytes > StreamPool::kSmallBytes ? pool.take_cached(bytes) : nullptr;
  if (block == nullptr) {
    BlockSpace& space = pool.space_for(bytes);
    block = space.find_free(bytes);
    if (block == nullptr) return nullptr;
    block = space.take(block, bytes);
  }
  // The pool keeps this count, since its lock is held. Counting in the thread's cache would take a
  // second lock.
  mark_allocated(pool.counts, *block, request);
  return block;
}

void CachingAllocator::free(std::byte* data) {
  if (data == nullptr) return;
  Block* const block = find_block(data);
  StreamPool& pool = block->segment->pool();
  const Category category = block->category;
  const auto requested_bytes = static_cast<std::int64_t>(block->requested_bytes);
  const bool recorded = options_.recorder != nullptr;
  if (block->used_across) [[unlikely]] {
    const MutexLock lock(pool.mutex);
    free_pending(pool, block);  // first, because it may throw: then the block is not freed
    count(pool.counts, category, -requested_bytes);
    record(record::MemoryAction::kFreeRequested, *block);  // before it can be allocated again
    return;
  }
  if (block->bytes <= StreamPool::kSmallBytes) {
    ThreadCache& cache = caches_.mine();
    Block* evicted = nullptr;
    bool kept = false;
    {
      const MutexLock lock(cache.mutex);
      kept = cache.push(&pool, block, options_.thread_cache_bytes, evicted);
      if (kept) {
        block->cached = true;
        count(cache.counts, category, -requested_bytes);
        if (recorded) [[unlikely]]
          record_free(*block);
      }
    }
    while (evicted != nullptr) {
      Block* const one = std::exchange(evicted, evicted->list_next);
      StreamPool& owner = one->segment->pool();
      const MutexLock lock(owner.mutex);
      owner.free(one);
    }
    if (kept) return;
  }
  const MutexLock lock(pool.mutex);
  count(pool.counts, category, -requested_bytes);
  if (recorded) [[unlikely]]
    record_free(*block);
  if (block->bytes > StreamPool::kSmallBytes) {
    pool.cache(block);
  } else {
    pool.free(block);
  }
}

void CachingAllocator::record_use(std::byte* data, StreamId stream) {
  Block* const block = find_block(data);
  StreamPool& pool = block->segment->pool();
  SLUICE_CHECK_MSG(stream < pool_count_.load(std::memory_order_acquire),
                   "a stream that was not added");
  if (pool.id == stream) return;
  const MutexLock lock(pool.mutex);
  std::vector<StreamId>& uses = pool.other_uses[block];
  if (std::find(uses.begin(), uses.end(), stream) == uses.end()) uses.push_back(stream);
  block->used_across = true;
}

// Records an event on every other stream that uses the block and queues the block after them.
void CachingAllocator::free_pending(StreamPool& pool, Block* block) {
  PendingFree pending{block, {}};
  const auto uses = pool.other_uses.find(block);
  for (const StreamId other : uses->second) {
    std::shared_ptr<device::Event> event = device_.create_event();
    pool_table_[other].load(std::memory_order_acquire)->stream.record(*event);
    pending.events.push_back(std::move(event));
  }
  pool.pending.push_back(std::move(pending));
  pool.other_uses.erase(uses);
  pool.pending_bytes += block->bytes;
  block->used_across = false;
  block->pending = true;
}

std::uint64_t CachingAllocator::block_bytes(const std::byte* data) const {
  return find_block(data)->bytes;
}

// The caller holds the locks of their pools.
void CachingAllocator::free_blocks(Block* list) {
  while (list != nullptr) {
    Block* const block = std::exchange(list, list->list_next);
    StreamPool& pool = block->segment->pool();
    pool.mutex.assert_held();
    pool.free(block);
  }
}

// Returns this thread's cached blocks of `pool` to it. Returns false if there were none.
bool CachingAllocator::free_thread_cache(StreamPool& pool) {
  ThreadCache& cache = caches_.mine();
  // Both locks at once: a search meanwhile finds the blocks in one place or the other.
  const MutexLock lock(pool.mutex);
  const MutexLock cache_lock(cache.mutex);
  Block* const mine = cache.drain(&pool);
  free_blocks(mine);
  return mine != nullptr;
}

// The caller holds the locks of all pools. Afterwards every block that is not in use is free.
void CachingAllocator::drain_caches() {
  const ThreadCaches::AllLocked locked_caches(caches_);
  for (const auto& cache : locked_caches.caches()) {
    cache->mutex.assert_held();
    free_blocks(cache->drain());
  }
  for (StreamPool& pool : pools_) {
    pool.mutex.assert_held();
    pool.free_cached();
  }
}

// The slow path, under all locks: a free block, moved or fresh pages, or a report.
Block* CachingAllocator::allocate_slowly(StreamPool& pool, const AllocationRequest& request) {
  const std::uint64_t bytes = round_up(request.bytes, BlockSpace::kAlignment);
  const MutexLock growth(growth_mutex_);
  const PoolLocks locks(pools_);
  pool.mutex.assert_held();
  Block* block = find_under_locks(pool, bytes);
  if (block == nullptr) block = allocate_under_locks(pool, bytes);
  if (block == nullptr) throw_out_of_memory(request);
  mark_allocated(pool.counts, *block, request);  // so that no thread sees one without a description
  return block;
}

std::byte* CachingAllocator::try_allocate(const AllocationRequest& request) {
  if (request.bytes == 0 || request.bytes > capacity_bytes_) return nullptr;
  SLUICE_CHECK_MSG(request.stream < pool_count_.load(std::memory_order_acquire),
                   "a stream that was not added");
  StreamPool& pool = *pool_table_[request.stream].load(std::memory_order_acquire);
  const std::uint64_t bytes = round_up(request.bytes, BlockSpace::kAlignment);
  const MutexLock growth(growth_mutex_);
  const PoolLocks locks(pools_);
  pool.mutex.assert_held();
  Block* block = find_under_locks(pool, bytes);
  if (block == nullptr) block = allocate_under_locks(pool, bytes);
  if (block == nullptr) return nullptr;
  mark_allocated(pool.counts, *block, request);
  return reinterpret_cast<std::byte*>(block->address);
}

// Looks for a free block once the threads' caches, and the blocks that other streams have finished
// with, are free.
Block* CachingAllocator::find_under_locks(StreamPool& pool, std::uint64_t bytes) {
  ++slow_count_;
  drain_caches();
  for (StreamPool& one : pools_) {
    one.mutex.assert_held();
    one.free_completed();
  }
  BlockSpace& space = pool.space_for(bytes);
  Block* const block = space.find_free(bytes);
  return block == nullptr ? nullptr : space.take(block, bytes);
}

// Finds memory for a request that no free block fits, in order of cost. (1) Above the peak of use
// it waits for pending blocks. (2) It moves pages within the remap budget, or takes fresh ones. (3)
// It moves pages beyond the budget, again and again while a wait frees further pending blocks.
// Returns null if memory runs out.
Block* CachingAllocator::allocate_under_locks(StreamPool& pool, std::uint64_t bytes) {
  // Reserves no addresses for a request that can never fit.
  if (bytes > std::min(pages_.ledger().cap_bytes(Tier::kDevice), capacity_bytes_)) {
    return nullptr;
  }
  std::uint64_t used_bytes = bytes;  // without pending blocks: the allocator can wait for those
  for (const StreamPool& one : pools_) {
    one.mutex.assert_held();
    used_bytes += one.small.used_bytes() + one.large.used_bytes() - one.pending_bytes;
  }
  const auto roomy_bytes =
      static_cast<std::uint64_t>(static_cast<double>(used_bytes) * (1.0 + options_.growth_slack));
  unstitched_pages_ = std::max(unstitched_pages_, roomy_bytes / page_bytes_);
  PageMover mover(*this, pool);
  // Above that, making one stream wait for another is preferred to growth.
  if (held_pages_ * page_bytes_ + bytes > unstitched_pages_ * page_bytes_ &&
      mover.wait_for_pending(bytes, false)) {
    BlockSpace& space = pool.space_for(bytes);
    if (Block* const block = space.find_free(bytes)) {
      return space.take(block, bytes);
    }
  }
  if (Block* const block = mover.make_room(bytes, false)) return block;
  pages_.trim();  // returns unused handles of the other size
  do {
    BlockSpace& space = pool.space_for(bytes);
    if (Block* const block = space.find_free(bytes)) {
      return space.take(block, bytes);
    }
    if (Block* const block = mover.make_room(bytes, true)) return block;
  } while (mover.wait_for_pending(bytes, true));
  return nullptr;
}

std::uint64_t CachingAllocator::remap_budget() const {
  constexpr std::uint64_t kLeast = 8192;
  return options_.remap_budget_pages.value_or(std::max(kLeast, 2 * held_pages_));
}

void CachingAllocator::begin_step() {
  const MutexLock growth(growth_mutex_);
  step_remaps_ = 0;
  if (options_.recorder != nullptr) options_.recorder->record(record::MemoryAction::kStep, 0, 0, 0);
}

void CachingAllocator::release_cached() {
  const MutexLock growth(growth_mutex_);
  const PoolLocks locks(pools_);
  drain_caches();
  release_cached_locked();
}

// Waits for all streams, then returns every whole page of free blocks and undoes all its mappings.
void CachingAllocator::release_cached_locked() {
  const Deadline deadline = Deadline::after_seconds(kDefaultDeadlineSeconds);
  ++flushes_;
  for (StreamPool& pool : pools_) {
    pool.stream.synchronize(deadline);
    ++synchronisations_;
  }
  for (StreamPool& pool : pools_) {
    pool.mutex.assert_held();
    pool.free_completed();
  }
  for (StreamPool& pool : pools_) {
    pool.mutex.assert_held();
    if (!pool.movable) continue;
    for (BlockSpace* space : {&pool.small, &pool.large}) {
      std::vector<Block*> blocks;
      space->visit_large_free([&](Block* block) {
        blocks.push_back(block);
        return true;
      });
      for (Block* block : blocks) {
        const std::uint64_t first = space->first_page(*block);
        for (std::uint64_t n = space->page_count(*block); n-- > 0;) {
          const std::uint64_t address = first + n * page_bytes_;
          if (options_.recorder != nullptr) {
            options_.recorder->record(record::MemoryAction::kSegmentUnmap, pool.id, address,
                                      page_bytes_);
          }
          PhysicalPage& page = *block->segment->entry_at(address).page;
          space->unback(block, address);  // from the end, so that `block` remains the part before
          page.holder = nullptr;
          while (page.aliases != nullptr) {
            PageEntry& entry = *page.aliases;
            page.aliases = entry.next_alias;
            entry.mapping = device::Mapping();
            entry.page = nullptr;
            entry.next_alias = nullptr;
            entry.busy_until = nullptr;
          }
          pages_.put_back(std::exchange(page.handle, nullptr));
          spare_.push_back(&page);
          --held_pages_;
        }
      }
    }
  }
  pages_.trim();
}

CachingAllocatorStatistics CachingAllocator::statistics() {
  const MutexLock growth(growth_mutex_);
  const PoolLocks locks(pools_);
  CachingAllocatorStatistics result;
  std::array<std::int64_t, kCategoryCount> live{};
  const auto add = [&](AllocationCounts& counts) {
    flush_counts(counts);
    for (std::size_t c = 0; c < kCategoryCount; ++c) live[c] += counts.live_by_category[c];
    result.allocation_count += counts.allocation_count;
    result.free_count += counts.free_count;
  };
  const ThreadCaches::AllLocked all(caches_);
  for (const auto& cache : all.caches()) {
    cache->mutex.assert_held();
    add(cache->counts);
    result.cached_bytes += cache->cached_bytes();
    result.cache_hits += cache->counts.allocation_count;
  }
  for (StreamPool& pool : pools_) {
    pool.mutex.assert_held();
    add(pool.counts);
  }
  for (std::size_t c = 0; c < kCategoryCount; ++c) {
    result.live_by_category[c] = static_cast<std::uint64_t>(live[c]);
  }
  result.live_bytes = static_cast<std::uint64_t>(live_bytes_.load());
  result.peak_live_bytes = static_cast<std::uint64_t>(peak_live_bytes_.load());
  for (const StreamPool& pool : pools_) {
    pool.mutex.assert_held();
    result.pending_bytes += pool.pending_bytes;
    result.cached_bytes += pool.cached_bytes();
    result.used_bytes += pool.small.used_bytes() + pool.large.used_bytes();
    result.free_bytes += pool.small.free_bytes() + pool.large.free_bytes();
  }
  result.used_bytes -= result.pending_bytes + result.cached_bytes;
  result.reserved_bytes = held_pages_ * page_bytes_;
  result.peak_reserved_bytes = peak_pages_ * page_bytes_;
  result.slow_count = slow_count_;
  result.fresh_pages = fresh_pages_;
  result.remaps = remaps_;
  result.reclaims = reclaims_;
  result.flushes = flushes_;
  result.event_waits = event_waits_;
  result.synchronisations = synchronisations_;
  return result;
}

}  // namespace sluice::allocator
