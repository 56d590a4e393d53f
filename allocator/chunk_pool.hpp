// Equal slots of device memory for model states: no fragmentation by construction.
//
// A *window* is a contiguous virtual range over a list of slots. Every window that the schedule
// will use is mapped once, at set-up; two windows may show the same slots (the schedule orders
// their uses), so in steady state nothing is mapped, unmapped or allocated. Kernels see one
// contiguous unit whatever the chunk size.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "allocator/page_pool.hpp"

namespace sluice::allocator {

class ChunkPool {
 public:
  // Takes `slot_count` chunk handles from `pages` at once (throws OutOfMemory).
  ChunkPool(device::Device& device, PagePool& pages, std::uint32_t slot_count, Category category);
  ~ChunkPool();  // queued work on its windows must have finished
  ChunkPool(const ChunkPool&) = delete;
  ChunkPool& operator=(const ChunkPool&) = delete;

  // Maps `slots` in order into a fresh range and returns its address; the window lives as long as
  // the pool. Slots may repeat across windows, not within one (InternalError, as for no slots).
  std::byte* map_window(std::span<const std::uint32_t> slots);

  const device::PhysicalBlock& block(std::uint32_t slot) const { return slots_.at(slot)->block; }
  std::uint32_t slot_count() const { return static_cast<std::uint32_t>(slots_.size()); }
  std::uint64_t slot_bytes() const { return pages_.chunk_bytes(); }
  void check_invariants() const;

 private:
  struct Window {
    device::AddressRange range;
    std::vector<device::Mapping> mappings;  // destroyed before range
    std::vector<std::uint32_t> slots;
  };
  device::Device& device_;
  PagePool& pages_;
  std::vector<PagePool::Handle*> slots_;
  std::vector<Window> windows_;
};

}  // namespace sluice::allocator
