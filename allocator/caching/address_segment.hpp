// A reserved range of device addresses, divided into pages, with a table from an address to its
// used block.
//
// The table has two forms, so that a lookup is one or two loads. Large blocks are longer than 1
// MiB, so at most one begins in each MiB: an array by MiB is enough. Small blocks begin at
// multiples of 512 bytes: each page has an array of starts, allocated with the page's first small
// block.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <vector>

#include "allocator/caching/block_store.hpp"
#include "allocator/page_pool.hpp"
#include "base/error.hpp"
#include "base/units.hpp"
#include "device/device.hpp"

namespace sluice::allocator {

struct PageEntry;

// A physical page. It may be mapped at several entries (aliases); at most one of them holds it. The
// others are unbacked and keep their mapping, because unmapping is slow and may never be needed.
struct PhysicalPage {
  PagePool::Handle* handle = nullptr;
  PageEntry* holder = nullptr;
  PageEntry* aliases = nullptr;  // all entries that map it, linked by next_alias
};

class AddressSegment;
class StreamPool;

// A page of addresses.
struct PageEntry {
  PhysicalPage* page = nullptr;  // the page mapped here, or null
  device::Mapping mapping;
  PageEntry* next_alias = nullptr;
  AddressSegment* segment = nullptr;
  // Set if the entry gave its page away while work on it may be queued. The mapping must stay until
  // this event.
  std::shared_ptr<device::Event> busy_until;

  bool held() const { return page != nullptr && page->holder == this; }
};

class AddressSegment {
 public:
  // Used blocks of the large space are longer than this, so at most one begins in each unit.
  static constexpr int kLargeShift = 20;
  static constexpr std::uint64_t kLargeUnit = std::uint64_t{1} << kLargeShift;

  AddressSegment(device::AddressRange range, std::uint64_t page_bytes, StreamPool& pool,
                 bool is_small)
      : range_(std::move(range)),
        page_bytes_(page_bytes),
        page_shift_(std::countr_zero(page_bytes)),
        pool_(pool),
        is_small_(is_small),
        base_(reinterpret_cast<std::uint64_t>(range_.data())),
        entries_(range_.bytes() >> page_shift_),
        starts_(is_small ? 0 : ceil_div(range_.bytes(), kLargeUnit)),
        leaves_(is_small ? entries_.size() : 0) {
    SLUICE_CHECK(std::has_single_bit(page_bytes));
    for (PageEntry& entry : entries_) entry.segment = this;
  }
  AddressSegment(const AddressSegment&) = delete;
  AddressSegment& operator=(const AddressSegment&) = delete;

  std::uint64_t base() const { return base_; }
  std::uint64_t bytes() const { return range_.bytes(); }
  bool contains(std::uint64_t address) const { return address - base_ < range_.bytes(); }
  StreamPool& pool() const { return pool_; }
  bool is_small() const { return is_small_; }  // whether it belongs to the pool's small space
  const device::AddressRange& range() const { return range_; }

  PageEntry& entry_at(std::uint64_t address) { return entries_[(address - base_) >> page_shift_]; }
  const PageEntry& entry_at(std::uint64_t address) const {
    return entries_[(address - base_) >> page_shift_];
  }
  std::uint64_t address_of(const PageEntry& entry) const {
    return base_ + static_cast<std::uint64_t>(&entry - entries_.data()) * page_bytes_;
  }
  std::vector<PageEntry>& entries() { return entries_; }

  // The used block that begins at `address`, or null. Any thread may call it, but only with the
  // address of a block that it owns: another thread may change other blocks at the same time.
  Block* find_block(std::uint64_t address) const {
    const std::uint64_t offset = address - base_;
    // Relaxed: the entry was stored before the block was allocated, and the caller received the
    // address after that, by some synchronisation of its own.
    if (!is_small_) {
      Block* const block = starts_[offset >> kLargeShift].load(kRelaxed);
      return block != nullptr && block->address == address ? block : nullptr;
    }
    const Start* const leaf = leaves_[offset >> page_shift_].starts.load(std::memory_order_acquire);
    if (leaf == nullptr || offset % kUnit != 0) return nullptr;
    return leaf[(offset & (page_bytes_ - 1)) / kUnit].load(kRelaxed);
  }
  // The table's entry for `address`. One thread at a time may call this.
  using Start = std::atomic<Block*>;
  Start& start_at(std::uint64_t address) {
    const std::uint64_t offset = address - base_;
    if (!is_small_) return starts_[offset >> kLargeShift];
    std::atomic<Start*>& place = leaves_[offset >> page_shift_].starts;
    Start* leaf = place.load(kRelaxed);
    if (leaf == nullptr) [[unlikely]]
      leaf = add_leaf(place);
    return leaf[(offset & (page_bytes_ - 1)) / kUnit];
  }

 private:
  static constexpr std::uint64_t kUnit = 512;  // BlockSpace::kAlignment
  static constexpr std::memory_order kRelaxed = std::memory_order_relaxed;

  // The starts of the small blocks of a page: 32 KiB for 2 MiB, allocated with the first block.
  struct Leaf {
    std::atomic<Start*> starts = nullptr;
    ~Leaf() { delete[] starts.load(); }
  };

  [[gnu::noinline]] Start* add_leaf(std::atomic<Start*>& place) const {
    auto* const leaf = new Start[page_bytes_ / kUnit]();
    place.store(leaf, std::memory_order_release);
    return leaf;
  }

  device::AddressRange range_;
  const std::uint64_t page_bytes_;
  const int page_shift_;  // page sizes are powers of two, so that the hit path does not divide
  StreamPool& pool_;
  const bool is_small_;
  const std::uint64_t base_;
  std::vector<PageEntry> entries_;  // destroyed before the range: mappings first
  std::vector<Start> starts_;       // large
  std::vector<Leaf> leaves_;        // small, by page
};

}  // namespace sluice::allocator
