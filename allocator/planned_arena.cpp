#include "allocator/planned_arena.hpp"

namespace sluice {

PlannedArena::PlannedArena(Device& device, PagePool& pages, std::uint64_t bytes, Category category)
    : pages_(pages), bytes_(round_up(bytes, pages.page_bytes())) {
  SLUICE_CHECK(bytes_ >= bytes);  // rounding did not wrap around
  if (bytes_ == 0) return;
  const std::uint64_t page_bytes = pages.page_bytes();
  const std::uint64_t page_count = bytes_ / page_bytes;
  handles_.reserve(page_count);
  mappings_.reserve(page_count);
  try {
    range_ = device.reserve(bytes_);
    for (std::uint64_t i = 0; i < page_count; ++i) {
      handles_.push_back(pages_.take_page(category));
      mappings_.push_back(device.map(range_, i * page_bytes, handles_.back()->block));
    }
  } catch (...) {
    // No destructor runs for an object that was never made.
    mappings_.clear();
    for (PagePool::Handle* handle : handles_) pages_.put_back(handle);
    throw;
  }
}

PlannedArena::~PlannedArena() {
  mappings_.clear();  // unmapped before the physical memory goes back
  for (PagePool::Handle* handle : handles_) pages_.put_back(handle);
}

std::byte* PlannedArena::at(std::uint64_t offset_bytes) const {
  SLUICE_CHECK(offset_bytes <= bytes_);
  return range_.data() + offset_bytes;
}

}  // namespace sluice
