// Address space divided into blocks: used, free (backed by memory) and unbacked (addresses
// without memory). Bookkeeping only: it touches no memory and calls no device. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "allocator/caching/block_store.hpp"

namespace sluice::allocator {

// Finds, splits and merges blocks in constant time (segregated fits with bitmaps, as in TLSF).
//
// Free blocks lie in bins by size: one bin per multiple of 512 bytes below 64 KiB, then 64 bins per
// power of two, each 1.6% wide. A bitmap of two levels gives the first bin that is not empty. A
// search takes an exact fit, or the best of at most kScan blocks of a bin: the smallest, then the
// lowest address.
//
//   addresses   | used | used | free     | unbacked        | free | used | unbacked ...
//   pages       |    page     |   page   |   page   | page |    page     |
//
// Invariants (check_invariants() tests them):
//   1. The blocks of a range tile it without gaps; `previous` and `next` link neighbours.
//   2. Neighbours of one kind are one block, unless they are used.
//   3. Addresses and sizes are multiples of kAlignment; unbacked blocks begin and end at pages.
//   4. Every free block is in the bin of its size, every unbacked one in their list; used blocks
//      are in no list. Block::bin names the list.
//   5. A bit of the bitmap is set exactly if its list is not empty.
//   6. used_bytes_ and backed_bytes_ are the sums over used blocks, and over used and free blocks.
//   7. A call that throws has changed nothing: records are reserved before the first change.
class BlockSpace {
 public:
  static constexpr std::uint64_t kAlignment = 512;  // of blocks, and the least size

  BlockSpace(BlockStore& store, std::uint64_t page_bytes);
  BlockSpace(const BlockSpace&) = delete;
  BlockSpace& operator=(const BlockSpace&) = delete;

  // Adds [address, address + bytes), whole pages, as one unbacked block. Its blocks will refer to
  // `segment`.
  void add_range(std::uint64_t address, std::uint64_t bytes, AddressSegment* segment);

  // A free block of at least `bytes` (a multiple of kAlignment), chosen as above, or null if there
  // is none. Before it returns null it searches the whole bin of `bytes`, beyond kScan.
  Block* find_free(std::uint64_t bytes) const;
  // Makes the first `bytes` of a free block used; the rest stays free.
  Block* take(Block* free_block, std::uint64_t bytes);
  // Makes [address, address + bytes) inside the free block used.
  Block* take_at(Block* free_block, std::uint64_t address, std::uint64_t bytes);
  // Frees a used block and merges it with free neighbours. Returns the merged block.
  Block* free(Block* block);

  // A run of neighbouring free and unbacked blocks with room for `bytes`, and the cost of its
  // missing pages.
  struct Window {
    std::uint64_t address = 0;
    Block* first = nullptr;  // the block that holds `address`
    double cost = 0.0;
  };
  // The cheapest window, or nothing. A window costs the sum of page_cost over the unbacked pages
  // that it touches; of equals the lowest address wins. At worst this takes blocks times pages
  // steps.
  std::optional<Window> find_window(
      std::uint64_t bytes,
      const std::function<double(const AddressSegment&, std::uint64_t page)>& page_cost) const;

  // Makes at least `count` spare records. Each of take(), take_at(), fill() and unback() needs at
  // most two, and reserves them and its entry of the address table before it changes anything.
  void reserve_records(std::uint32_t count) {
    if (spare_count_ < count) [[unlikely]]
      add_records(count);
  }

  // fill(): a page of an unbacked block gets memory and becomes free. unback(): a page of a free
  // block loses its memory. Both return the block that then holds the page.
  Block* fill(Block* unbacked, std::uint64_t page_address);
  Block* unback(Block* free_block, std::uint64_t page_address);

  // The whole pages inside a block: the address of the first, and their number.
  std::uint64_t first_page(const Block& block) const;
  std::uint64_t page_count(const Block& block) const;

  // Visits free blocks that hold at least a whole page, largest bins first, until `visit` returns
  // false. `visit` must not change the space.
  void visit_large_free(const std::function<bool(Block*)>& visit) const;
  void visit_all(const std::function<void(const Block&)>& visit) const;

  std::uint64_t used_bytes() const { return used_bytes_; }
  std::uint64_t free_bytes() const { return backed_bytes_ - used_bytes_; }
  void check_invariants() const;

 private:
  static constexpr std::uint32_t kExactBins = 128;
  static constexpr std::uint32_t kBinsPerPower = 64;
  static constexpr std::uint32_t kBinCount = kExactBins + 40 * kBinsPerPower;
  // The list of unbacked blocks: after the bins, so that no search finds it.
  static constexpr std::uint32_t kUnbackedList = kBinCount;
  static constexpr std::uint32_t kListCount = kBinCount + 1;
  static constexpr int kScan = 16;

  static std::uint32_t bin_of(std::uint64_t bytes);
  static std::uint32_t list_of(BlockKind kind, std::uint64_t bytes);
  void add_records(std::uint32_t count);
  Block* new_record();  // uninitialised. Precondition: there is a spare record
  void drop_record(Block* block);
  void link(Block* block);    // into the list of its kind and size
  void unlink(Block* block);  // out of its list
  // Changes the size of a block that is in a list.
  void resize(Block* block, std::uint64_t bytes);
  std::uint32_t next_bin(std::uint32_t from) const;  // kBinCount if all further bins are empty
  Block* find_in_bin(std::uint32_t bin, std::uint64_t bytes, int scan_limit) const;
  // Splits off everything from `address` on as a new block of the same kind, which is in no list.
  // `block` stays in its list.
  Block* split(Block* block, std::uint64_t address);
  // Merges `block`, which is in no list, with neighbours of its kind. Links and returns the result.
  Block* merge(Block* block);
  Block* change_page(Block* block, std::uint64_t page_address, BlockKind kind);
  void consider_run(
      Block* first, std::uint64_t bytes,
      const std::function<double(const AddressSegment&, std::uint64_t page)>& page_cost,
      std::optional<Window>& best) const;

  BlockStore& store_;
  const std::uint64_t page_bytes_;
  std::vector<Block*> range_starts_;
  std::array<Block*, kListCount> lists_{};
  std::array<std::uint64_t, (kListCount + 63) / 64> occupied_{};  // a bit for each list
  std::uint64_t occupied_words_ = 0;  // a bit for each word of occupied_
  Block* spare_records_ = nullptr;    // linked by list_next, so that splitting takes no lock
  std::uint32_t spare_count_ = 0;
  std::uint64_t used_bytes_ = 0;
  std::uint64_t backed_bytes_ = 0;  // used and free
};

}  // namespace sluice::allocator
