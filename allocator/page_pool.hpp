// Physical handles of device memory in two sizes: a page (2 MiB) and a chunk slot.
//
// The pool charges the ledger, then the device; freed handles are kept for reuse by either size's
// next request (a chunk request may not be served from pages: a handle's size is fixed at
// creation). Not thread-safe: one owner, at set-up and at planned phase changes.
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

  // Taken from the free list or created. Throws OutOfMemory. `category` is charged while it is out
  // and after it is put back (the memory stays ours) until trim(); a free handle of another
  // category moves its charge.
  Handle* take_page(Category category);
  Handle* take_chunk(Category category);
  // Null where the budget or the device has no room for it.
  Handle* try_take_page(Category category);
  // The handle must be unmapped. Fails only for a handle that is not out (InternalError).
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
  // Where chunk and page are of one size, there is one list.
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
  std::vector<Handle*> empty_;  // trimmed: a place in handles_ without memory
};

}  // namespace sluice::allocator
