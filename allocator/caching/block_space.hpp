// Address space divided into blocks, without gaps: used, free (memory behind every byte) and hollow
// (addresses alone). Bookkeeping only: it touches no memory and calls no device.
//
// Neighbours of one kind are one block, except used ones. Hollow blocks begin and end at pages. A
// free block is found in constant time: bins by size (exact below 64 KiB, then 64 per power of
// two, within 1.6%), the first bin that has any, and in it one that fits exactly or the smallest of
// at most kScan, lowest address first. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "allocator/caching/block_store.hpp"

namespace sluice::allocator {

class BlockSpace {
 public:
  static constexpr std::uint64_t kAlignment = 512;  // of blocks, and the least size

  BlockSpace(BlockStore& store, std::uint64_t page_bytes);
  BlockSpace(const BlockSpace&) = delete;
  BlockSpace& operator=(const BlockSpace&) = delete;

  // Adds [address, address + bytes), whole pages, as one hollow block. `segment`: what its blocks
  // will say.
  void add_range(std::uint64_t address, std::uint64_t bytes, AddressSegment* segment);

  // A free block of at least `bytes` (a multiple of kAlignment), chosen as above; null: there is
  // none. Only before it says so does it look at more blocks than kScan of a bin.
  Block* find_free(std::uint64_t bytes) const;
  // Makes the first `bytes` of a free block used; what is left stays free.
  Block* take(Block* free_block, std::uint64_t bytes);
  // The same of [address, address + bytes), inside it.
  Block* take_at(Block* free_block, std::uint64_t address, std::uint64_t bytes);
  // A used block becomes free and is merged with free neighbours; returns the whole.
  Block* give_back(Block* block);

  // Room for `bytes` in free and hollow blocks side by side, and what it lacks.
  struct Window {
    std::uint64_t address = 0;
    Block* first = nullptr;  // the block that holds `address`
    double cost = 0.0;
  };
  // The cheapest: page_cost is asked for each hollow page that the window touches. The lowest
  // address among equals.
  std::optional<Window> find_window(
      std::uint64_t bytes,
      const std::function<double(const AddressSegment&, std::uint64_t page)>& page_cost) const;

  // Records at hand: each of take(), take_at(), fill() and hollow() needs at most two more, and
  // sees to it, and to the address table, before it changes anything.
  void reserve_records(std::uint32_t count) {
    if (spare_count_ < count) [[unlikely]]
      add_records(count);
  }

  // One page of a hollow block gets memory (free), of a free block loses it (hollow). Returns the
  // block that then holds it.
  Block* fill(Block* hollow, std::uint64_t page_address);
  Block* hollow(Block* free_block, std::uint64_t page_address);

  // Whole pages inside a block.
  std::uint64_t first_page(const Block& block) const;
  std::uint64_t page_count(const Block& block) const;

  // Free blocks that hold a whole page or more, largest bins first; stops when `visit` says false.
  // `visit` may not change the space.
  void visit_large_free(const std::function<bool(Block*)>& visit) const;
  void visit_all(const std::function<void(const Block&)>& visit) const;

  std::uint64_t used_bytes() const { return used_bytes_; }
  std::uint64_t free_bytes() const { return backed_bytes_ - used_bytes_; }
  void check_invariants() const;

 private:
  static constexpr std::uint32_t kExactBins = 128;
  static constexpr std::uint32_t kBinsPerPower = 64;
  static constexpr std::uint32_t kBinCount = kExactBins + 40 * kBinsPerPower;
  // Behind the bins, and found by no search.
  static constexpr std::uint32_t kHollowList = kBinCount;
  static constexpr std::uint32_t kListCount = kBinCount + 1;
  static constexpr int kScan = 16;

  static std::uint32_t bin_of(std::uint64_t bytes);
  static std::uint32_t list_of(BlockKind kind, std::uint64_t bytes);
  void add_records(std::uint32_t count);
  Block* new_record();  // one must be at hand; says nothing yet
  void drop_record(Block* block);
  void link(Block* block);    // into the list that its kind and size ask for
  void unlink(Block* block);  // out of it
  // `block`, in a list, is from now on so long.
  void resize(Block* block, std::uint64_t bytes);
  std::uint32_t next_bin(std::uint32_t from) const;  // kBinCount: no further bin has any
  Block* find_in_bin(std::uint32_t bin, std::uint64_t bytes, int scan_limit) const;
  // Splits off everything from `address` on as a new block of the same kind, which is not linked;
  // in what list `block` is stays as it was.
  Block* split(Block* block, std::uint64_t address);
  // `block` is not linked; takes in equal neighbours, links the whole and returns it.
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
  std::uint64_t occupied_words_ = 0;                              // a bit for each of those
  Block* spare_records_ = nullptr;  // linked by list_next; so that splitting takes no lock
  std::uint32_t spare_count_ = 0;
  std::uint64_t used_bytes_ = 0;
  std::uint64_t backed_bytes_ = 0;  // not hollow
};

}  // namespace sluice::allocator
