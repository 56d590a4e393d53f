// A planned arena: one contiguous device range backed by pages, with offsets that were packed in
// advance (arena_packing.hpp). A step makes no allocator calls. The arena may lie over the slots of
// a chunk pool. The plan that packed both decides which of them uses a byte at each time, so the
// same physical memory serves windows and arena in turn, without new mappings.
#pragma once

#include <cstdint>
#include <vector>

#include "allocator/chunk_pool.hpp"
#include "allocator/page_pool.hpp"

namespace sluice::allocator {

class PlannedArena {
 public:
  // Maps round_up(bytes, page) of memory; bytes may be 0. over: the slots of this pool, in order,
  // are the arena's first bytes, and pages are taken for the rest only. It must outlive the arena.
  // Throws OutOfMemory.
  PlannedArena(device::Device& device, PagePool& pages, std::uint64_t bytes, Category category,
               const ChunkPool* over = nullptr);
  ~PlannedArena();
  PlannedArena(const PlannedArena&) = delete;
  PlannedArena& operator=(const PlannedArena&) = delete;
  // Precondition: offset_bytes <= bytes(), so the end has an address too. Null if bytes() is 0.
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
