// A planned arena: one contiguous device range backed by pages, inside which offsets were packed
// offline (arena_packing.hpp). Zero allocator calls in a step. It may lie over a chunk pool's
// slots: the plan that packed both says which of them holds a byte when, so that the same physical
// memory serves windows and arena in turns, and nothing is mapped anew for it.
#pragma once

#include <cstdint>
#include <vector>

#include "allocator/chunk_pool.hpp"
#include "allocator/page_pool.hpp"

namespace sluice::allocator {

class PlannedArena {
 public:
  // Maps round_up(bytes, page) of memory. bytes may be 0. over: its slots, in order, are the
  // arena's first bytes, and pages are taken for the rest alone; outlives the arena.
  PlannedArena(device::Device& device, PagePool& pages, std::uint64_t bytes, Category category,
               const ChunkPool* over = nullptr);
  ~PlannedArena();
  PlannedArena(const PlannedArena&) = delete;
  PlannedArena& operator=(const PlannedArena&) = delete;
  // offset_bytes <= bytes(): the end has an address too. Null in an arena of 0 bytes.
  std::byte* at(std::uint64_t offset_bytes) const;
  std::uint64_t bytes() const { return bytes_; }  // mapped: whole pages

 private:
  PagePool& pages_;
  std::uint64_t bytes_ = 0;
  std::vector<PagePool::Handle*> handles_;
  device::AddressRange range_;
  std::vector<device::Mapping> mappings_;
};

}  // namespace sluice::allocator
