// Slots of equal size in device memory, for model states. Equal slots cannot fragment.
//
// A *window* is a contiguous virtual range over a list of slots. All windows of a schedule are
// mapped once, at set-up. Two windows may share slots; the schedule orders their uses. So in steady
// state nothing is mapped, unmapped or allocated, and kernels see one contiguous unit for any chunk
// size.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "allocator/page_pool.hpp"

namespace sluice::allocator {

class ChunkPool {
 public:
  // Takes `slot_count` chunk handles from `pages`. Throws OutOfMemory.
  ChunkPool(device::Device& device, PagePool& pages, std::uint32_t slot_count, Category category);
  ~ChunkPool();  // queued work on its windows must have finished
  ChunkPool(const ChunkPool&) = delete;
  ChunkPool& operator=(const ChunkPool&) = delete;

  // Maps `slots` in order into a new range and returns its address. The window lives as long as the
  // pool. A slot may be in several windows, but once in each. Throws InternalError if a slot
  // repeats or there are none.
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
