#include "allocator/page_pool.hpp"

#include <algorithm>
#include <utility>

namespace sluice::allocator {

PagePool::PagePool(device::Device& device, Ledger& ledger, std::uint64_t chunk_bytes)
    : device_(device), ledger_(ledger), chunk_bytes_(chunk_bytes) {
  SLUICE_CHECK(chunk_bytes > 0 && chunk_bytes % page_bytes() == 0);
}

std::uint64_t PagePool::page_bytes() const {
  return device_.facts().granularity_bytes;
}

PagePool::Handle* PagePool::take_page(Category category) {
  return take(free_list_of(page_bytes()), page_bytes(), category);
}

PagePool::Handle* PagePool::try_take_page(Category category) {
  if (free_list_of(page_bytes()).empty()) {
    // Checks first: out of memory is an expected result here, and an exception costs microseconds.
    if (!ledger_.try_reserve(Tier::kDevice, category, page_bytes())) return nullptr;
  }
  try {
    return take_page(category);
  } catch (const OutOfMemory&) {
    return nullptr;
  }
}

PagePool::Handle* PagePool::take_chunk(Category category) {
  return take(free_list_of(chunk_bytes_), chunk_bytes_, category);
}

PagePool::Handle* PagePool::take(std::vector<Handle*>& free_list, std::uint64_t bytes,
                                 Category category) {
  if (!free_list.empty()) {
    Handle* handle = free_list.back();
    ledger_.recategorise(handle->charge, category);
    free_list.pop_back();
    handle->taken = true;
    return handle;
  }
  // Everything that can throw comes before the handle changes its owner.
  Reservation charge = ledger_.reserve(Tier::kDevice, category, bytes);
  if (empty_.empty()) {
    const std::size_t count = handles_.size() + 1;
    empty_.reserve(count);
    free_pages_.reserve(count);
    free_chunks_.reserve(count);
    empty_.push_back(&handles_.emplace_back());
  }
  Handle* handle = empty_.back();
  handle->block = device_.create_block(bytes);
  handle->charge = std::move(charge);
  handle->taken = true;
  empty_.pop_back();
  return handle;
}

void PagePool::put_back(Handle* handle) {
  SLUICE_CHECK(handle->taken);
  handle->taken = false;
  free_list_of(handle->block.bytes()).push_back(handle);
}

void PagePool::trim() {
  for (std::vector<Handle*>* list : {&free_pages_, &free_chunks_}) {
    for (Handle* handle : *list) {
      handle->block = device::PhysicalBlock();
      handle->charge = Reservation();
      empty_.push_back(handle);
    }
    list->clear();
  }
}

std::uint64_t PagePool::live_handles() const {
  return handles_.size() - empty_.size() - free_handles();
}

std::uint64_t PagePool::free_handles() const {
  return free_pages_.size() + free_chunks_.size();
}

void PagePool::check_invariants() const {
  std::uint64_t taken_count = 0;
  std::uint64_t empty_count = 0;
  for (const Handle& handle : handles_) {
    SLUICE_CHECK(handle.charge.bytes() == handle.block.bytes());
    if (handle.taken) ++taken_count;
    if (!handle.block) {
      ++empty_count;
      SLUICE_CHECK(!handle.taken);
    } else {
      SLUICE_CHECK(handle.block.bytes() == page_bytes() || handle.block.bytes() == chunk_bytes_);
    }
  }
  SLUICE_CHECK(taken_count == live_handles());
  SLUICE_CHECK(empty_count == empty_.size());
  const auto check_list = [](const std::vector<Handle*>& list, std::uint64_t bytes) {
    for (const Handle* handle : list) {
      SLUICE_CHECK(!handle->taken && handle->block.bytes() == bytes);
      SLUICE_CHECK(std::count(list.begin(), list.end(), handle) == 1);
    }
  };
  check_list(free_pages_, page_bytes());
  check_list(free_chunks_, chunk_bytes_);
}

}  // namespace sluice::allocator
