// Queries over the placed boxes.
//
// find_offset walks the boxes that overlap in time, in the order of their offsets, and keeps a
// cursor at the highest end so far. Where the next box begins above the cursor there is a gap. The
// entries of a block lie in arrays by field, so that one loop compares 64 lifetimes; the result is
// a bit mask.
#include "allocator/packing/placed_boxes.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace sluice::packing {

void PlacedBoxes::Block::clear_from(std::uint32_t first) {
  std::fill(lower.begin() + first, lower.end(), std::numeric_limits<std::int32_t>::max());
  std::fill(upper.begin() + first, upper.end(), std::numeric_limits<std::int32_t>::min());
  count = first;
}

void PlacedBoxes::Block::insert_at(std::uint32_t at, const Box& box, std::uint64_t offset_bytes) {
  const auto open_place = [this, at](auto& values, auto value) {
    std::copy_backward(values.begin() + at, values.begin() + count, values.begin() + count + 1);
    values[at] = value;
  };
  open_place(lower, box.lower);
  open_place(upper, box.upper);
  open_place(begin_bytes, offset_bytes);
  open_place(end_bytes, offset_bytes + box.bytes);
  ++count;
}

void PlacedBoxes::clear() {
  blocks_used_ = 0;
  order_.clear();
}

std::uint32_t PlacedBoxes::add_block() {
  if (blocks_used_ == blocks_.size()) blocks_.emplace_back();
  blocks_[blocks_used_].clear_from(0);
  return blocks_used_++;
}

// Bit i is set if entry first + i lives at a common position with `box`.
std::uint64_t PlacedBoxes::overlap_mask(const Block& block, std::uint32_t first, const Box& box) {
  std::array<std::uint8_t, 64> overlaps;
  for (std::uint32_t i = 0; i < 64; ++i) {
    // Bitwise operations on integers have no branch, so the loop vectorises.
    const int starts_before = block.lower[first + i] < box.upper;
    const int ends_after = block.upper[first + i] > box.lower;
    overlaps[i] = static_cast<std::uint8_t>(starts_before & ends_after);
  }
  std::uint64_t mask = 0;
  for (std::uint32_t i = 0; i < 8; ++i) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, overlaps.data() + 8 * i, 8);
    if constexpr (std::endian::native == std::endian::big) eight = __builtin_bswap64(eight);
    // Byte k holds 0 or 1 at bit 8k; the factor 2^(56 - 7k) moves it to bit 56 + k.
    mask |= ((eight * 0x0102040810204080ull) >> 56) << (8 * i);
  }
  return mask;
}

std::uint64_t PlacedBoxes::find_offset(const Box& box, Fit fit) {
  std::uint64_t cursor = 0;  // all addresses below are taken or were examined
  std::uint64_t best_offset = 0;
  std::uint64_t best_gap = std::numeric_limits<std::uint64_t>::max();
  for (const std::uint32_t id : order_) {
    const Block& block = blocks_[id];
    for (std::uint32_t first = 0; first < block.count; first += 64) {
      std::uint64_t mask = overlap_mask(block, first, box);
      work_ += 16 + static_cast<std::uint64_t>(std::popcount(mask));
      for (; mask != 0; mask &= mask - 1) {
        const std::uint32_t i = first + static_cast<std::uint32_t>(std::countr_zero(mask));
        const std::uint64_t begin = block.begin_bytes[i];
        if (begin > cursor) {
          const std::uint64_t gap = begin - cursor;
          const std::uint64_t offset = aligned(cursor, box);
          if (gap < best_gap && offset < begin && begin - offset >= box.bytes) {
            best_gap = gap;
            best_offset = offset;
            if (fit == Fit::kFirst || gap == box.bytes) return best_offset;
          }
        }
        cursor = std::max(cursor, block.end_bytes[i]);
      }
    }
  }
  return best_gap == std::numeric_limits<std::uint64_t>::max() ? aligned(cursor, box) : best_offset;
}

// Moves the upper half of a full block to a new one after it.
void PlacedBoxes::split(std::size_t position) {
  const std::uint32_t upper_id = add_block();  // may move blocks_
  Block& lower_half = blocks_[order_[position]];
  Block& upper_half = blocks_[upper_id];
  constexpr std::uint32_t kHalf = kWidth / 2;
  const auto move_half = [](const auto& from, auto& to) {
    std::copy(from.begin() + kHalf, from.end(), to.begin());
  };
  move_half(lower_half.lower, upper_half.lower);
  move_half(lower_half.upper, upper_half.upper);
  move_half(lower_half.begin_bytes, upper_half.begin_bytes);
  move_half(lower_half.end_bytes, upper_half.end_bytes);
  upper_half.count = kWidth - kHalf;
  lower_half.clear_from(kHalf);
  order_.insert(order_.begin() + static_cast<std::ptrdiff_t>(position) + 1, upper_id);
}

// Finds the block by binary search, splits it if it is full, and inserts by offset.
void PlacedBoxes::insert(const Box& box, std::uint64_t offset_bytes) {
  if (order_.empty()) order_.push_back(add_block());
  // The last block that begins at or below the offset.
  const auto after = std::upper_bound(order_.begin() + 1, order_.end(), offset_bytes,
                                      [this](std::uint64_t offset, std::uint32_t id) {
                                        return offset < blocks_[id].begin_bytes[0];
                                      });
  auto position = static_cast<std::size_t>(after - order_.begin()) - 1;
  if (blocks_[order_[position]].count == kWidth) {
    split(position);
    if (offset_bytes >= blocks_[order_[position + 1]].begin_bytes[0]) ++position;
  }
  Block& block = blocks_[order_[position]];
  const auto place = std::upper_bound(block.begin_bytes.begin(),
                                      block.begin_bytes.begin() + block.count, offset_bytes);
  block.insert_at(static_cast<std::uint32_t>(place - block.begin_bytes.begin()), box, offset_bytes);
  work_ += 16;
}

}  // namespace sluice::packing
