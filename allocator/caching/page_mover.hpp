// Room for one request in a pool that has no free block for it: pages found, moved and mapped.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "allocator/caching/caching_allocator.hpp"

namespace sluice::allocator {

// One request's search. The caller holds the growth mutex and every pool's. Each page changes places in one
// step that either happens or throws before anything is changed, so a search that fails leaves
// what it has found as free memory of the requester.
class PageMover {
 public:
  PageMover(CachingAllocator& allocator, StreamPool& requester)
      : allocator_(allocator), requester_(requester) {}

  // Returns a used block of `bytes`, or null. Takes pages from free blocks while the remap budget
  // lasts, then fresh ones, then again from free blocks if `by_all_means`.
  Block* make_room(std::uint64_t bytes, bool by_all_means);

  // Makes the owners' streams wait for the smallest set of pending blocks that suffices for
  // `bytes`, or for all when no set does, and frees them. Returns false when no block is pending,
  // or when free pages suffice without.
  bool wait_for_pending(std::uint64_t bytes, bool even_if_pages_suffice);

 private:
  // Whole pages that nobody needs, [first, end), inside one free block.
  struct Victim {
    Block* block;  // that holds `first`; null in the run of the window, whose blocks change
    StreamPool* pool;
    BlockSpace* space;
    std::uint64_t end;
  };
  using Victims = std::map<std::uint64_t, Victim>;  // by first

  // A page leaves a block and fills another, perhaps of the same space: two records each.
  static constexpr std::uint32_t kMoveRecords = 4;

  void collect_victims() SLUICE_REQUIRES(allocator_.growth_mutex_);
  void add_victim(const Victim& victim, std::uint64_t first);
  Victims::iterator find_victim(std::uint64_t page_address);
  std::uint64_t pages_of(const Victims::value_type& victim) const;
  // From now on the pages of [begin, end) are wanted, and no victims; the blocks around them are
  // found anew each time.
  void set_window(Block* block, std::uint64_t begin, std::uint64_t end);
  Block* block_in_run(std::uint64_t address) const;
  void add_segment(BlockSpace& space, std::uint64_t bytes)
      SLUICE_REQUIRES(allocator_.growth_mutex_);
  double cost_of(const AddressSegment& segment, std::uint64_t page_address);
  // Three ways to give the slot a page; each returns false when it has none.
  bool reclaim(PageSlot& slot) SLUICE_REQUIRES(allocator_.growth_mutex_);
  bool steal(PageSlot& slot, std::uint64_t wanted_pages) SLUICE_REQUIRES(allocator_.growth_mutex_);
  bool take_fresh(PageSlot& slot) SLUICE_REQUIRES(allocator_.growth_mutex_);
  Victims::iterator choose_victim(std::uint64_t wanted_pages);
  // The page that `from` holds goes to `slot`, which shows it already.
  void move(Victims::iterator victim, PageSlot& from, PageSlot& slot)
      SLUICE_REQUIRES(allocator_.growth_mutex_);
  void show(PageSlot& slot, PhysicalPage& page) SLUICE_REQUIRES(allocator_.growth_mutex_);  // maps
  void record(record::MemoryAction action, const StreamPool& pool, std::uint64_t page_address);
  // A point in the pool's stream behind all that may use its free memory; the requester's stream
  // is made to wait for it.
  const std::shared_ptr<device::Event>& event_of(StreamPool& pool)
      SLUICE_REQUIRES(allocator_.growth_mutex_);

  CachingAllocator& allocator_;
  StreamPool& requester_;
  Victims victims_;
  std::uint64_t current_victim_ = 0;  // its first page
  // The first of the free and hollow blocks around the window: its record stays while they change.
  Block* run_ = nullptr;
  std::map<StreamPool*, std::shared_ptr<device::Event>> events_;
};

}  // namespace sluice::allocator
