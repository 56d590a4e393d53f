// Makes room for one request in a pool without a fitting free block: finds, moves and maps pages.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "allocator/caching/caching_allocator.hpp"

namespace sluice::allocator {

// The search of one request. The caller holds the growth mutex and every pool's lock.
//
// A window is a run of addresses in the requester's space, long enough for the request, made of
// free and unbacked blocks. Its unbacked pages are missing, and each gets a page by one of three
// ways: reclaim() (a free page that these addresses still map: no driver call), steal() (a page of
// a victim, mapped a second time) or take_fresh() (a new page of the ledger). A victim is a run of
// whole pages inside a free block of a movable pool.
//
//   before   window | free | unbacked | unbacked |       victim | free page A | free page B |
//   after    window |            used            |       victim |  unbacked   |  unbacked   |
//                             A        B                      (still maps A)  (still maps B)
//
// Invariants:
//   1. Victims are disjoint, and none overlaps the window.
//   2. A page changes its holder in one step, which happens or throws before any change. So a
//      search that fails loses nothing: the pages that it found are free memory of the requester.
//   3. The requester's stream waits for an event of the giver's stream before it uses the page. The
//      entry that gave the page keeps the event (busy_until): its mapping stays until then.
//   4. The record of run_ stays valid while blocks of the run split and merge, because the left
//      record of a merge survives.
class PageMover {
 public:
  PageMover(CachingAllocator& allocator, StreamPool& requester)
      : allocator_(allocator), requester_(requester) {}

  // Returns a used block of `bytes`, or null. Takes pages from free blocks while the remap budget
  // lasts, then fresh ones, then again from free blocks if `by_all_means`.
  Block* make_room(std::uint64_t bytes, bool by_all_means);

  // Chooses pending blocks that suffice for `bytes`: the smallest that suffices alone, else the
  // largest ones, or all if they do not suffice. Makes their streams wait for the blocks' events
  // and frees them. Returns false if no block is pending, or if free pages suffice without, unless
  // even_if_pages_suffice.
  bool wait_for_pending(std::uint64_t bytes, bool even_if_pages_suffice);

 private:
  // The unneeded whole pages [first, end) inside one free block.
  struct Victim {
    Block* block;  // holds `first`; null in the run of the window, because its blocks change
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
  // Sets the window to [begin, end) and removes its pages from the victims. The run's blocks change
  // from now on, so block_in_run() finds them each time.
  void set_window(Block* block, std::uint64_t begin, std::uint64_t end);
  Block* block_in_run(std::uint64_t address) const;
  void add_segment(BlockSpace& space, std::uint64_t bytes)
      SLUICE_REQUIRES(allocator_.growth_mutex_);
  double cost_of(const AddressSegment& segment, std::uint64_t page_address);
  // Three ways to give the entry a page; each returns false when it has none.
  bool reclaim(PageEntry& entry) SLUICE_REQUIRES(allocator_.growth_mutex_);
  bool steal(PageEntry& entry, std::uint64_t wanted_pages)
      SLUICE_REQUIRES(allocator_.growth_mutex_);
  bool take_fresh(PageEntry& entry) SLUICE_REQUIRES(allocator_.growth_mutex_);
  Victims::iterator choose_victim(std::uint64_t wanted_pages);
  // Moves the page held by `from`, an entry of the segment `victim`, to `entry`. Precondition:
  // `entry` maps that page already.
  void move(Victims::iterator victim, PageEntry& from, PageEntry& entry)
      SLUICE_REQUIRES(allocator_.growth_mutex_);
  // Maps the page at the entry, after unmapping the entry's old page.
  void map_page(PageEntry& entry, PhysicalPage& page) SLUICE_REQUIRES(allocator_.growth_mutex_);
  void record(record::MemoryAction action, const StreamPool& pool, std::uint64_t page_address);
  // An event after all work of the pool's stream that may use its free memory. The first call for
  // a pool records it and makes the requester's stream wait for it.
  const std::shared_ptr<device::Event>& event_of(StreamPool& pool)
      SLUICE_REQUIRES(allocator_.growth_mutex_);

  CachingAllocator& allocator_;
  StreamPool& requester_;
  Victims victims_;
  std::uint64_t current_victim_ = 0;  // its first page
  // The first of the free and unbacked blocks around the window: its record stays while they
  // change.
  Block* run_ = nullptr;
  std::map<StreamPool*, std::shared_ptr<device::Event>> events_;
};

}  // namespace sluice::allocator
