// A planned arena: one contiguous device range backed by pages, inside which offsets were packed
// offline (arena_packing.hpp). Zero allocator calls in a step.
#pragma once

#include <cstdint>
#include <vector>

#include "allocator/page_pool.hpp"

namespace sluice {

class PlannedArena {
 public:
  // Maps round_up(bytes, page) of memory. bytes may be 0.
  PlannedArena(Device& device, PagePool& pages, std::uint64_t bytes, Category category);
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
  AddressRange range_;
  std::vector<Mapping> mappings_;
};

}  // namespace sluice
