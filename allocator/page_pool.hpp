// Physical handles of device memory in two sizes: a page (2 MiB) and a chunk slot.
//
// The pool charges the ledger, then allocates from the device. It keeps freed handles for the next
// request of the same size; a handle's size is fixed at creation. Not thread-safe: it has one
// owner, which uses it at set-up and at planned phase changes.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "allocator/ledger.hpp"
#include "device/device.hpp"

namespace sluice::allocator {

class PagePool {
 public:
  // chunk_bytes: a multiple of the device granularity.
  PagePool(device::Device& device, Ledger& ledger, std::uint64_t chunk_bytes);
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  struct Handle {
    Reservation charge;  // destroyed after block: memory is never held uncharged
    device::PhysicalBlock block;
    bool taken = false;
  };

  // Take a handle from the free list, or create one. Throws OutOfMemory. `category` is charged
  // until trim(), even after put_back(), because the pool keeps the memory. A free handle of
  // another category moves its charge.
  Handle* take_page(Category category);
  Handle* take_chunk(Category category);
  // Returns null if the budget or the device has no room.
  Handle* try_take_page(Category category);
  // Returns a handle to the free list. It must be unmapped. Throws InternalError if it is not
  // taken.
  void put_back(Handle* handle);
  // Returns all free handles to the device.
  void trim();

  std::uint64_t chunk_bytes() const { return chunk_bytes_; }
  std::uint64_t page_bytes() const;
  const Ledger& ledger() const { return ledger_; }
  std::uint64_t live_handles() const;  // taken and not put back
  std::uint64_t free_handles() const;
  void check_invariants() const;

 private:
  Handle* take(std::vector<Handle*>& free_list, std::uint64_t bytes, Category category);
  // If chunks and pages have one size, there is one list.
  std::vector<Handle*>& free_list_of(std::uint64_t bytes) {
    return bytes == page_bytes() ? free_pages_ : free_chunks_;
  }
  device::Device& device_;
  Ledger& ledger_;
  std::uint64_t chunk_bytes_;
  std::deque<Handle> handles_;  // stable addresses
  // Each list has room for every handle, so that put_back and trim never allocate.
  std::vector<Handle*> free_pages_;
  std::vector<Handle*> free_chunks_;
  std::vector<Handle*> empty_;  // trimmed handles: entries of handles_ without memory
};

}  // namespace sluice::allocator
