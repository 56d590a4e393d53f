// The boxes that a packing has placed so far, in the plane of time and addresses, and their gaps.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/units.hpp"

namespace sluice::packing {

// A buffer in compressed time. It lives in [lower, upper); positions are small ranks.
struct Box {
  std::int32_t lower = 0;
  std::int32_t upper = 0;
  std::uint64_t bytes = 0;
  std::uint64_t alignment_bytes = 1;  // of the address; see PlacedBoxes
  bool operator==(const Box&) const = default;
};

enum class Fit : std::uint8_t {
  kFirst,  // the lowest gap that is large enough
  kBest,   // the smallest gap that is large enough, or the lowest of such; else above all boxes
};

// The placed boxes, sorted by offset. A query walks all of them, 64 lifetimes at a time, with
// SIMD instructions; then it looks only at the boxes that overlap in time. At 2,000 to
// 20,000 boxes this is several times cheaper than an interval tree plus a sort by offset. The boxes
// lie in blocks, so that an insertion moves at most kWidth entries. With a time index short boxes
// also lie in buckets of consecutive positions, where short queries find them.
class PlacedBoxes {
 public:
  // base_bytes is the address of offset 0. Alignments are those of addresses.
  explicit PlacedBoxes(std::uint64_t base_bytes = 0) : base_bytes_(base_bytes) {}
  // With many boxes, short ones are found by time, which pays if few overlap.
  // Offsets are the same either way. position_count: boxes live in [0, position_count).
  PlacedBoxes(std::uint64_t base_bytes, std::int32_t position_count, std::size_t box_count);
  void clear();
  // Returns the offset for `box`, without inserting it.
  std::uint64_t find_offset(const Box& box, Fit fit);
  void insert(const Box& box, std::uint64_t offset_bytes);
  // Entries examined since construction: a measure of time that is independent of the machine.
  std::uint64_t work() const { return work_; }

 private:
  // Boxes by offset, in blocks.
  class Sorted {
   public:
    void clear();
    void insert(const Box& box, std::uint64_t offset_bytes);
    // Calls visit(begin, end) for the boxes that overlap `box` in time, by offset. It stops when
    // visit returns true, and then returns true. Adds the entries examined to `work`.
    template <typename Visit>
    bool each_overlap(const Box& box, std::uint64_t& work, const Visit& visit) const;

   private:
    static constexpr std::uint32_t kWidth = 256;  // entries per block, a multiple of 64
    // Entries from `count` on hold empty lifetimes, which overlap nothing.
    struct Block {
      std::uint32_t count = 0;
      std::array<std::int32_t, kWidth> lower;
      std::array<std::int32_t, kWidth> upper;
      std::array<std::uint64_t, kWidth> begin_bytes;
      std::array<std::uint64_t, kWidth> end_bytes;
      void clear_from(std::uint32_t first);
      void insert_at(std::uint32_t at, const Box& box, std::uint64_t offset_bytes);
    };
    // A mask of 64 entries from `first` on; bit i is set if entry first + i lives at a common
    // position.
    struct Overlaps {
      std::uint64_t mask, count;
    };
    static Overlaps overlaps_of(const Block& block, std::uint32_t first, const Box& box);
    std::uint32_t add_block();
    void split(std::size_t position);

    std::vector<Block> blocks_;  // storage, reused by clear()
    std::uint32_t blocks_used_ = 0;
    std::vector<std::uint32_t> order_;  // the blocks by offset; none is empty
  };

  // The first offset at or above `offset_bytes` that is aligned for the box.
  std::uint64_t aligned(std::uint64_t offset_bytes, const Box& box) const {
    if (box.alignment_bytes == 1) return offset_bytes;
    return round_up(base_bytes_ + offset_bytes, box.alignment_bytes) - base_bytes_;
  }

  // Follows boxes in the order of their offsets, and keeps the gap that suits best.
  class GapSearch;
  struct Span {
    std::uint64_t begin_bytes, end_bytes;
  };
  struct ShortBox {
    std::int32_t lower, upper;
    Span span;
  };
  void collect_short(const Box& box);
  bool is_short(const Box& box) const;

  std::uint64_t base_bytes_;
  std::int32_t bucket_width_ = 0;               // positions; 0: no index
  std::vector<std::vector<ShortBox>> buckets_;  // by time: the short boxes that live in each
  std::vector<Span> short_;                     // scratch: short boxes that overlap, by offset
  Sorted long_boxes_;                           // all boxes if there is no index
  Sorted short_boxes_;                          // once more, for queries of many buckets
  std::uint64_t work_ = 0;
};

}  // namespace sluice::packing
