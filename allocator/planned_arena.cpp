// The address range is laid out in two parts:
//
//   | slot 0 | slot 1 | ... of `over` | page | page | ... |
//   0                            shared_bytes         bytes_
//
// The range is longer than the arena if the last shared slot reaches beyond it. Mappings are undone
// before pages go back to the pool, because another owner may get the pages at once.
#include "allocator/planned_arena.hpp"

#include <algorithm>

namespace sluice::allocator {

PlannedArena::PlannedArena(device::Device& device, PagePool& pages, std::uint64_t bytes,
                           Category category, const ChunkPool* over)
    : pages_(pages), bytes_(round_up(bytes, pages.page_bytes())) {
  SLUICE_CHECK(bytes_ >= bytes);  // the rounding did not overflow
  if (bytes_ == 0) return;
  const std::uint64_t page_bytes = pages.page_bytes();
  const std::uint64_t slot_bytes = pages.chunk_bytes();
  const std::uint64_t slot_count =
      over == nullptr ? 0
                      : std::min<std::uint64_t>(over->slot_count(), ceil_div(bytes_, slot_bytes));
  const std::uint64_t shared_bytes = slot_count * slot_bytes;
  const std::uint64_t page_count = bytes_ > shared_bytes ? (bytes_ - shared_bytes) / page_bytes : 0;
  handles_.reserve(page_count);
  mappings_.reserve(slot_count + page_count);
  try {
    range_ = device.reserve(std::max(bytes_, shared_bytes));
    for (std::uint64_t slot = 0; slot < slot_count; ++slot) {
      const device::PhysicalBlock& block = over->block(static_cast<std::uint32_t>(slot));
      mappings_.push_back(device.map(range_, slot * slot_bytes, block));
    }
    for (std::uint64_t i = 0; i < page_count; ++i) {
      handles_.push_back(pages_.take_page(category));
      mappings_.push_back(
          device.map(range_, shared_bytes + i * page_bytes, handles_.back()->block));
    }
  } catch (...) {
    // The destructor does not run for a constructor that throws.
    mappings_.clear();
    for (PagePool::Handle* handle : handles_) pages_.put_back(handle);
    throw;
  }
}

PlannedArena::~PlannedArena() {
  mappings_.clear();  // unmaps before the physical memory is returned
  for (PagePool::Handle* handle : handles_) pages_.put_back(handle);
}

std::byte* PlannedArena::at(std::uint64_t offset_bytes) const {
  SLUICE_CHECK(offset_bytes <= bytes_);
  return range_.data() + offset_bytes;
}

}  // namespace sluice::allocator
