// Slots are handles of physical memory; a window maps several of them side by side:
//
//   slots       0  1  2  3
//   window A   [0][1][2]
//   window B         [2][3]      slot 2 is at two addresses
//
// Invariants: mapping i of a window lies at i * slot_bytes() of its range and maps slots[i]; each
// window's mappings are destroyed before its range, and all of them before the slots' memory.
#include "allocator/chunk_pool.hpp"

#include <string>
#include <utility>

namespace sluice::allocator {

ChunkPool::ChunkPool(device::Device& device, PagePool& pages, std::uint32_t slot_count,
                     Category category)
    : device_(device), pages_(pages) {
  slots_.reserve(slot_count);
  try {
    for (std::uint32_t i = 0; i < slot_count; ++i) slots_.push_back(pages_.take_chunk(category));
  } catch (...) {
    // The destructor does not run for a constructor that throws.
    for (PagePool::Handle* handle : slots_) pages_.put_back(handle);
    throw;
  }
}

ChunkPool::~ChunkPool() {
  windows_.clear();  // unmaps before the physical memory is returned
  for (PagePool::Handle* handle : slots_) pages_.put_back(handle);
}

std::byte* ChunkPool::map_window(std::span<const std::uint32_t> slots) {
  SLUICE_CHECK(!slots.empty());
  std::vector<bool> used(slots_.size());
  for (const std::uint32_t slot : slots) {
    SLUICE_CHECK_MSG(slot < slots_.size(), "slot " + std::to_string(slot));
    SLUICE_CHECK_MSG(!used[slot], "slot " + std::to_string(slot) + " twice in one window");
    used[slot] = true;
  }
  Window window;
  window.slots.assign(slots.begin(), slots.end());
  window.mappings.reserve(slots.size());
  window.range = device_.reserve(slots.size() * slot_bytes());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    window.mappings.push_back(device_.map(window.range, i * slot_bytes(), slots_[slots[i]]->block));
  }
  windows_.push_back(std::move(window));
  return windows_.back().range.data();
}

void ChunkPool::check_invariants() const {
  for (const PagePool::Handle* handle : slots_) {
    SLUICE_CHECK(handle->taken && handle->block.bytes() == slot_bytes());
  }
  for (const Window& window : windows_) {
    SLUICE_CHECK(window.mappings.size() == window.slots.size());
    SLUICE_CHECK(window.range.bytes() == window.slots.size() * slot_bytes());
    for (std::size_t i = 0; i < window.slots.size(); ++i) {
      SLUICE_CHECK(window.slots[i] < slots_.size());
      SLUICE_CHECK(window.mappings[i].data() == window.range.data() + i * slot_bytes());
      SLUICE_CHECK(window.mappings[i].bytes() == slot_bytes());
    }
  }
}

}  // namespace sluice::allocator
