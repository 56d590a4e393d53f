// Queries over the placed boxes.
//
// find_offset walks the boxes that overlap in time, in the order of their offsets, and keeps a
// cursor at the highest end so far. Where the next box begins above the cursor there is a gap. The
// entries of a block lie in arrays by field, so that few instructions compare 64 lifetimes; the
// result is a bit mask. With a time index the short boxes come by offset, too, and merge into that
// walk: those of a few buckets are sorted, and those of many come from blocks of their own, which
// takes less time.
#include "allocator/packing/placed_boxes.hpp"

#include <algorithm>
#include <bit>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace sluice::packing {

void PlacedBoxes::Sorted::Block::clear_from(std::uint32_t first) {
  std::fill(lower.begin() + first, lower.end(), std::numeric_limits<std::int32_t>::max());
  std::fill(upper.begin() + first, upper.end(), std::numeric_limits<std::int32_t>::min());
  count = first;
}

void PlacedBoxes::Sorted::Block::insert_at(std::uint32_t at, const Box& box,
                                           std::uint64_t offset_bytes) {
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

PlacedBoxes::PlacedBoxes(std::uint64_t base_bytes, std::int32_t position_count,
                         std::size_t box_count)
    : base_bytes_(base_bytes) {
  // With fewer boxes the plain walk is as fast.
  constexpr std::size_t kManyBoxes = 16384;
  constexpr std::int32_t kBuckets = 1024;
  if (box_count < kManyBoxes) return;
  bucket_width_ = position_count / kBuckets + 1;
  buckets_.resize(static_cast<std::size_t>(position_count / bucket_width_) + 1);
}

void PlacedBoxes::clear() {
  for (auto& bucket : buckets_) bucket.clear();
  long_boxes_.clear();
  short_boxes_.clear();
}

void PlacedBoxes::Sorted::clear() {
  blocks_used_ = 0;
  order_.clear();
}

std::uint32_t PlacedBoxes::Sorted::add_block() {
  if (blocks_used_ == blocks_.size()) blocks_.emplace_back();
  blocks_[blocks_used_].clear_from(0);
  return blocks_used_++;
}

#if defined(__SSE2__)
// Every x86-64 has these instructions. Compilers make twice as many of the loop below.
PlacedBoxes::Sorted::Overlaps PlacedBoxes::Sorted::overlaps_of(const Block& block,
                                                               std::uint32_t first,
                                                               const Box& box) {
  const __m128i box_lower = _mm_set1_epi32(box.lower);
  const __m128i box_upper = _mm_set1_epi32(box.upper);
  const auto four = [&](std::uint32_t at) {
    const auto load = [at](const auto& values) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(values.data() + at));
    };
    return _mm_and_si128(_mm_cmpgt_epi32(box_upper, load(block.lower)),
                         _mm_cmpgt_epi32(load(block.upper), box_lower));
  };
  std::uint64_t mask = 0;
  __m128i negative_counts = _mm_setzero_si128();  // by byte
  for (std::uint32_t i = 0; i < 64; i += 16) {
    const std::uint32_t at = first + i;
    const __m128i sixteen = _mm_packs_epi16(_mm_packs_epi32(four(at), four(at + 4)),
                                            _mm_packs_epi32(four(at + 8), four(at + 12)));
    mask |= static_cast<std::uint64_t>(_mm_movemask_epi8(sixteen)) << i;
    negative_counts = _mm_add_epi8(negative_counts, sixteen);
  }
  const __m128i counts =
      _mm_sad_epu8(_mm_sub_epi8(_mm_setzero_si128(), negative_counts), _mm_setzero_si128());
  return {mask, static_cast<std::uint64_t>(_mm_cvtsi128_si64(counts)) +
                    static_cast<std::uint64_t>(_mm_cvtsi128_si64(_mm_srli_si128(counts, 8)))};
}
#else
PlacedBoxes::Sorted::Overlaps PlacedBoxes::Sorted::overlaps_of(const Block& block,
                                                               std::uint32_t first,
                                                               const Box& box) {
  std::uint64_t mask = 0;
  for (std::uint32_t i = 0; i < 64; ++i) {
    // Bitwise operations on integers have no branch.
    const int starts_before = block.lower[first + i] < box.upper;
    const int ends_after = block.upper[first + i] > box.lower;
    mask |= static_cast<std::uint64_t>(starts_before & ends_after) << i;
  }
  return {mask, static_cast<std::uint64_t>(std::popcount(mask))};
}
#endif

class PlacedBoxes::GapSearch {
 public:
  GapSearch(const PlacedBoxes& placed, const Box& box, Fit fit)
      : placed_(placed), box_(box), fit_(fit) {}

  // Returns true if no later gap can suit better.
  bool pass(std::uint64_t begin_bytes, std::uint64_t end_bytes) {
    if (begin_bytes > cursor_) {
      const std::uint64_t gap = begin_bytes - cursor_;
      const std::uint64_t offset = placed_.aligned(cursor_, box_);
      if (gap < best_gap_ && offset < begin_bytes && begin_bytes - offset >= box_.bytes) {
        best_gap_ = gap;
        best_offset_ = offset;
        if (fit_ == Fit::kFirst || gap == box_.bytes) return true;
      }
    }
    cursor_ = std::max(cursor_, end_bytes);
    return false;
  }
  std::uint64_t offset() const {
    return best_gap_ == kNone ? placed_.aligned(cursor_, box_) : best_offset_;
  }

 private:
  static constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();
  const PlacedBoxes& placed_;
  const Box& box_;
  Fit fit_;
  std::uint64_t cursor_ = 0;  // all addresses below are taken or were examined
  std::uint64_t best_offset_ = 0;
  std::uint64_t best_gap_ = kNone;
};

template <typename Visit>
bool PlacedBoxes::Sorted::each_overlap(const Box& box, std::uint64_t& work,
                                       const Visit& visit) const {
  for (const std::uint32_t id : order_) {
    const Block& block = blocks_[id];
    for (std::uint32_t first = 0; first < block.count; first += 64) {
      const Overlaps overlaps = overlaps_of(block, first, box);
      work += 16 + overlaps.count;
      std::uint64_t mask = overlaps.mask;
      for (; mask != 0; mask &= mask - 1) {
        const std::uint32_t i = first + static_cast<std::uint32_t>(std::countr_zero(mask));
        if (visit(block.begin_bytes[i], block.end_bytes[i])) return true;
      }
    }
  }
  return false;
}

// A short box lives in at most two buckets.
bool PlacedBoxes::is_short(const Box& box) const {
  return bucket_width_ > 0 && (box.upper - 1) / bucket_width_ - box.lower / bucket_width_ <= 1;
}

// A box may be collected from both of its buckets, which does no harm. The work counts as that of
// the buckets, however the boxes are found.
void PlacedBoxes::collect_short(const Box& box) {
  short_.clear();
  if (bucket_width_ == 0) return;
  const auto begin = static_cast<std::size_t>(box.lower / bucket_width_);
  const auto end = static_cast<std::size_t>((box.upper - 1) / bucket_width_) + 1;
  for (std::size_t at = begin; at < end; ++at) work_ += buckets_[at].size();
  if (!is_short(box)) {
    std::uint64_t counted = 0;
    short_boxes_.each_overlap(box, counted,
                              [&](std::uint64_t begin_bytes, std::uint64_t end_bytes) {
                                short_.push_back({begin_bytes, end_bytes});
                                return false;
                              });
    return;
  }
  for (std::size_t at = begin; at < end; ++at) {
    for (const ShortBox& one : buckets_[at]) {
      if (one.lower < box.upper && one.upper > box.lower) short_.push_back(one.span);
    }
  }
  std::sort(short_.begin(), short_.end(),
            [](const Span& a, const Span& b) { return a.begin_bytes < b.begin_bytes; });
}

// Merges the boxes of the two structures by offset.
std::uint64_t PlacedBoxes::find_offset(const Box& box, Fit fit) {
  collect_short(box);
  GapSearch search(*this, box, fit);
  auto next = short_.begin();
  const auto visit = [&](std::uint64_t begin_bytes, std::uint64_t end_bytes) {
    for (; next != short_.end() && next->begin_bytes < begin_bytes; ++next) {
      if (search.pass(next->begin_bytes, next->end_bytes)) return true;
    }
    return search.pass(begin_bytes, end_bytes);
  };
  const bool ended = long_boxes_.each_overlap(box, work_, visit);
  if (ended) return search.offset();
  for (; next != short_.end(); ++next) {
    if (search.pass(next->begin_bytes, next->end_bytes)) break;
  }
  return search.offset();
}

// Moves the upper half of a full block to a new one after it.
void PlacedBoxes::Sorted::split(std::size_t position) {
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

void PlacedBoxes::insert(const Box& box, std::uint64_t offset_bytes) {
  work_ += 16;
  if (!is_short(box)) return long_boxes_.insert(box, offset_bytes);
  const auto first = static_cast<std::size_t>(box.lower / bucket_width_);
  const auto last = static_cast<std::size_t>((box.upper - 1) / bucket_width_);
  const ShortBox entry{box.lower, box.upper, {offset_bytes, offset_bytes + box.bytes}};
  for (std::size_t at = first; at <= last; ++at) buckets_[at].push_back(entry);
  short_boxes_.insert(box, offset_bytes);
}

// Finds the block by binary search, splits it if it is full, and inserts by offset.
void PlacedBoxes::Sorted::insert(const Box& box, std::uint64_t offset_bytes) {
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
}

}  // namespace sluice::packing
