// A reserved range of device addresses, page by page, and the table from an address to its block.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <vector>

#include "allocator/page_pool.hpp"
#include "base/error.hpp"
#include "device/device.hpp"

namespace sluice {

struct PageSlot;

// A physical page. It may be mapped at several slots (aliases), of which one at most holds it: the
// others are hollow, and show it only because unmapping is slow and may never be needed.
struct PhysicalPage {
  PagePool::Handle* handle = nullptr;
  PageSlot* holder = nullptr;
  PageSlot* aliases = nullptr;  // every slot mapped to it, linked by next_alias
};

class AddressSegment;
class StreamPool;

// A page of addresses.
struct PageSlot {
  PhysicalPage* page = nullptr;  // what is mapped here; null: nothing
  Mapping mapping;
  PageSlot* next_alias = nullptr;
  AddressSegment* segment = nullptr;
  // Where the page was given away while work on it may be queued: the mapping must stay until then.
  std::shared_ptr<Event> busy_until;

  bool held() const { return page != nullptr && page->holder == this; }
};

class AddressSegment {
 public:
  AddressSegment(AddressRange range, std::uint64_t page_bytes, StreamPool& pool, bool is_small)
      : range_(std::move(range)),
        page_bytes_(page_bytes),
        page_shift_(std::countr_zero(page_bytes)),
        pool_(pool),
        is_small_(is_small),
        base_(reinterpret_cast<std::uint64_t>(range_.data())),
        slots_(range_.bytes() >> page_shift_),
        leaves_(std::make_unique<std::atomic<std::atomic<std::uint32_t>*>[]>(slots_.size())) {
    SLUICE_CHECK(std::has_single_bit(page_bytes));
    for (PageSlot& slot : slots_) slot.segment = this;
  }
  ~AddressSegment() {
    for (std::size_t i = 0; i < slots_.size(); ++i) delete[] leaves_[i].load();
  }
  AddressSegment(const AddressSegment&) = delete;
  AddressSegment& operator=(const AddressSegment&) = delete;

  std::uint64_t base() const { return base_; }
  std::uint64_t bytes() const { return range_.bytes(); }
  bool contains(std::uint64_t address) const { return address - base_ < range_.bytes(); }
  StreamPool& pool() const { return pool_; }
  bool is_small() const { return is_small_; }  // of the pool's small space
  const AddressRange& range() const { return range_; }

  PageSlot& slot_at(std::uint64_t address) { return slots_[(address - base_) >> page_shift_]; }
  const PageSlot& slot_at(std::uint64_t address) const {
    return slots_[(address - base_) >> page_shift_];
  }
  std::uint64_t address_of(const PageSlot& slot) const {
    return base_ + static_cast<std::uint64_t>(&slot - slots_.data()) * page_bytes_;
  }
  std::vector<PageSlot>& slots() { return slots_; }

  // The number of the used block that begins at `address`, or kNoBlock. Any thread; what it
  // finds is meaningful to whoever was given the block.
  static constexpr std::uint32_t kNoBlock = UINT32_MAX;
  std::uint32_t find_block(std::uint64_t address) const {
    const std::uint64_t offset = address - base_;
    const std::atomic<std::uint32_t>* const leaf =
        leaves_[offset >> page_shift_].load(std::memory_order_acquire);
    if (leaf == nullptr || offset % kUnit != 0) return kNoBlock;
    // Relaxed: the caller got the address after set_block, through whatever gave it to this thread.
    return leaf[(offset & (page_bytes_ - 1)) / kUnit].load(std::memory_order_relaxed) - 1;
  }
  // After it set_block() at the address does not throw.
  void prepare(std::uint64_t address) { entry(address); }
  void set_block(std::uint64_t address, std::uint32_t id) {
    entry(address).store(id + 1, kRelaxed);
  }
  void clear_block(std::uint64_t address) { entry(address).store(0, kRelaxed); }

 private:
  static constexpr std::uint64_t kUnit = 512;  // BlockSpace::kAlignment
  static constexpr std::memory_order kRelaxed = std::memory_order_relaxed;

  // By one thread at a time. A leaf (16 KiB for 2 MiB) is made with the first block in its page.
  std::atomic<std::uint32_t>& entry(std::uint64_t address) {
    const std::uint64_t offset = address - base_;
    std::atomic<std::atomic<std::uint32_t>*>& place = leaves_[offset >> page_shift_];
    std::atomic<std::uint32_t>* leaf = place.load(kRelaxed);
    if (leaf == nullptr) {
      leaf = new std::atomic<std::uint32_t>[page_bytes_ / kUnit]();
      place.store(leaf, std::memory_order_release);
    }
    return leaf[(offset & (page_bytes_ - 1)) / kUnit];
  }

  AddressRange range_;
  const std::uint64_t page_bytes_;
  const int page_shift_;  // pages are powers of two: the hit path does not divide
  StreamPool& pool_;
  const bool is_small_;
  const std::uint64_t base_;
  std::vector<PageSlot> slots_;  // destroyed before the range: mappings first
  std::unique_ptr<std::atomic<std::atomic<std::uint32_t>*>[]> leaves_;
};

}  // namespace sluice
