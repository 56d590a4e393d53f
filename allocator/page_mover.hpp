// Room for one request in a pool that has no free block for it: pages found, moved and mapped.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "allocator/caching_allocator.hpp"

namespace sluice {

// One request's search, with the growth mutex and all pools' held. Each page changes places in one
// step that either happens or throws before anything is changed, so a search that fails leaves
// what it has found as free memory of the requester.
class PageMover {
 public:
  PageMover(CachingAllocator& allocator, StreamPool& requester)
      : allocator_(allocator), requester_(requester) {}

  // A used block of `bytes`, or null. Takes pages from free blocks while `remap_limit` lasts, else
  // fresh ones, then again from free blocks if `by_all_means`.
  Block* make_room(std::uint64_t bytes, bool by_all_means);

  // Makes the owners' streams wait for the smallest set of pending blocks that suffices for
  // `bytes`, or for all where none does, and frees them. False: there was none.
  bool wait_for_pending(std::uint64_t bytes);

 private:
  struct Victim {
    Block* block;
    StreamPool* pool;
    BlockSpace* space;
  };
  using Victims = std::map<std::uint64_t, Victim>;  // free blocks with whole pages, by address

  void collect_victims();
  Victims::iterator find_victim(std::uint64_t address);  // that holds the whole page at `address`
  std::uint64_t victim_pages() const;
  void spare_run(Block* block);  // the free blocks around the window are no victims
  void add_segment(BlockSpace& space, std::uint64_t bytes);
  double cost_of(const AddressSegment& segment, std::uint64_t page_address);
  // Gives the slot a page by one of three ways; false: there is none.
  bool reclaim(PageSlot& slot);
  bool steal(PageSlot& slot, std::uint64_t wanted_pages);
  bool take_fresh(PageSlot& slot);
  Victims::iterator choose_victim(std::uint64_t wanted_pages);
  // The holder's page goes to `slot`, which shows it already or is made to.
  void move(Victims::iterator victim, PageSlot& from, PageSlot& slot);
  void show(PageSlot& slot, PhysicalPage& page);  // maps
  // A point in the pool's stream behind all that may use its free memory; the requester's stream
  // is made to wait for it.
  const std::shared_ptr<Event>& event_of(StreamPool& pool);

  CachingAllocator& allocator_;
  StreamPool& requester_;
  Victims victims_;
  std::uint64_t current_victim_ = 0;  // address
  std::map<StreamPool*, std::shared_ptr<Event>> events_;
};

}  // namespace sluice
