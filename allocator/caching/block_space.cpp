// A search looks at three places, in order of cost. (1) The bin of the wanted size: its blocks may
// be too small, so at most kScan are compared. (2) The next bin that is not empty: every block
// there is long enough. (3) The rest of the first bin, because any other answer would be slower
// still. One step from a bin to the next reads two words of the bitmap.
//
// All changes are made of three steps: split() cuts a block in two, the kind of one part changes,
// and merge() joins it with neighbours of its new kind. The left record of a merge survives, so the
// first block of a run of free and unbacked blocks keeps its record while the run changes;
// PageMover relies on that.
#include "allocator/caching/block_space.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "allocator/caching/address_segment.hpp"
#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::allocator {

BlockSpace::BlockSpace(BlockStore& store, std::uint64_t page_bytes)
    : store_(store), page_bytes_(page_bytes) {
  SLUICE_CHECK(page_bytes % kAlignment == 0);
}

// The bin of a size: the multiple of 512 itself below 64 KiB; above, the power of two and the next
// six bits (64 bins per power).
std::uint32_t BlockSpace::bin_of(std::uint64_t bytes) {
  const std::uint64_t units = bytes / kAlignment;
  if (units < kExactBins) return static_cast<std::uint32_t>(units);
  const auto power = static_cast<std::uint32_t>(std::bit_width(units)) - 1;  // >= 7
  const auto sub = static_cast<std::uint32_t>((units >> (power - 6)) & (kBinsPerPower - 1));
  return kExactBins + (power - 7) * kBinsPerPower + sub;
}

void BlockSpace::add_records(std::uint32_t count) {
  while (spare_count_ < count) drop_record(store_.take());
}

Block* BlockSpace::new_record() {
  Block* const block = spare_records_;
  spare_records_ = block->list_next;
  --spare_count_;
  return block;
}

void BlockSpace::drop_record(Block* block) {
  block->list_next = spare_records_;
  spare_records_ = block;
  ++spare_count_;
}

std::uint32_t BlockSpace::list_of(BlockKind kind, std::uint64_t bytes) {
  return kind == BlockKind::kUnbacked ? kUnbackedList : bin_of(bytes);
}

// Puts the block at the head of its list and sets the list's bits if it was empty.
void BlockSpace::link(Block* block) {
  const std::uint32_t bin = list_of(block->kind, block->bytes);
  Block* const head = lists_[bin];
  block->bin = bin;
  block->list_previous = nullptr;
  block->list_next = head;
  lists_[bin] = block;
  if (head != nullptr) {
    head->list_previous = block;
  } else {
    occupied_[bin / 64] |= std::uint64_t{1} << (bin % 64);
    occupied_words_ |= std::uint64_t{1} << (bin / 64);
  }
}

// Takes the block out of its list. The bits change only if the list becomes empty, so the usual
// case touches neighbours alone.
void BlockSpace::unlink(Block* block) {
  Block* const before = block->list_previous;
  Block* const after = block->list_next;
  if (after != nullptr) after->list_previous = before;
  if (before != nullptr) {
    before->list_next = after;
    return;
  }
  const std::uint32_t bin = block->bin;
  lists_[bin] = after;
  if (after != nullptr) return;
  std::uint64_t& word = occupied_[bin / 64];
  word &= ~(std::uint64_t{1} << (bin % 64));
  if (word == 0) occupied_words_ &= ~(std::uint64_t{1} << (bin / 64));
}

// Most changes of size stay within a bin, and then the lists stay as they are.
void BlockSpace::resize(Block* block, std::uint64_t bytes) {
  if (list_of(block->kind, bytes) == block->bin) {
    block->bytes = bytes;
    return;
  }
  unlink(block);
  block->bytes = bytes;
  link(block);
}

// The first non-empty bin from `from` on: the rest of its word, then the next word with a bit,
// found by the second level of the bitmap.
std::uint32_t BlockSpace::next_bin(std::uint32_t from) const {
  if (from >= kBinCount) return kBinCount;
  std::uint32_t word = from / 64;
  std::uint64_t bits = occupied_[word] & (~std::uint64_t{0} << (from % 64));
  if (bits == 0) {
    static_assert(std::tuple_size_v<decltype(occupied_)> < 64);
    const std::uint64_t words = occupied_words_ & (~std::uint64_t{0} << (word + 1));
    if (words == 0) return kBinCount;
    word = static_cast<std::uint32_t>(std::countr_zero(words));
    bits = occupied_[word];
  }
  return word * 64 + static_cast<std::uint32_t>(std::countr_zero(bits));
}

void BlockSpace::add_range(std::uint64_t address, std::uint64_t bytes, AddressSegment* segment) {
  SLUICE_CHECK(address % page_bytes_ == 0 && bytes > 0 && bytes % page_bytes_ == 0);
  range_starts_.reserve(range_starts_.size() + 1);
  Block* const block = store_.take();
  block->address = address;
  block->bytes = bytes;
  block->segment = segment;
  block->kind = BlockKind::kUnbacked;
  range_starts_.push_back(block);
  link(block);
}

Block* BlockSpace::find_free(std::uint64_t bytes) const {
  const std::uint32_t own_bin = bin_of(bytes);
  if (own_bin >= kBinCount) return nullptr;
  if (Block* const best = find_in_bin(own_bin, bytes, kScan)) return best;
  // Every block of a further bin is long enough.
  const std::uint32_t bin = next_bin(own_bin + 1);
  if (bin < kBinCount) return find_in_bin(bin, bytes, kScan);
  // The alternatives cost more than a full scan: beyond kScan, its own bin may still have a fit.
  return find_in_bin(own_bin, bytes, std::numeric_limits<int>::max());
}

Block* BlockSpace::find_in_bin(std::uint32_t bin, std::uint64_t bytes, int scan_limit) const {
  Block* best = nullptr;
  for (Block* block = lists_[bin]; block != nullptr && scan_limit > 0; block = block->list_next) {
    --scan_limit;
    if (block->bytes < bytes) continue;  // possible only in the bin of `bytes` itself
    if (block->bytes == bytes) return block;
    if (best == nullptr || block->bytes < best->bytes ||
        (block->bytes == best->bytes && block->address < best->address)) {
      best = block;
    }
  }
  return best;
}

Block* BlockSpace::split(Block* block, std::uint64_t address) {
  Block* const rest = new_record();
  rest->address = address;
  rest->bytes = block->address + block->bytes - address;
  rest->segment = block->segment;
  rest->kind = block->kind;
  rest->cached = rest->pending = rest->unrecorded = rest->used_across = false;
  rest->previous = block;
  rest->next = block->next;
  if (rest->next != nullptr) rest->next->previous = rest;
  block->next = rest;
  block->bytes -= rest->bytes;
  return rest;
}

// Absorbs the block after it, then is absorbed by the block before it. A record that
// disappears becomes spare.
Block* BlockSpace::merge(Block* block) {
  Block* const before = block->previous;
  Block* after = block->next;
  const bool joins_before = before != nullptr && before->kind == block->kind;
  std::uint64_t bytes = block->bytes;
  if (after != nullptr && after->kind == block->kind) {
    Block* const gone = after;
    unlink(gone);
    bytes += gone->bytes;
    after = gone->next;
    block->next = after;
    if (after != nullptr) after->previous = block;
    drop_record(gone);
  }
  if (!joins_before) {
    block->bytes = bytes;
    link(block);
    return block;
  }
  before->next = after;
  if (after != nullptr) after->previous = before;
  drop_record(block);
  resize(before, before->bytes + bytes);
  return before;
}

Block* BlockSpace::take(Block* free_block, std::uint64_t bytes) {
  SLUICE_CHECK(free_block->kind == BlockKind::kFree && bytes <= free_block->bytes);
  reserve_records(1);
  const std::uint64_t address = free_block->address;
  AddressSegment::Start& start = free_block->segment->start_at(address);
  unlink(free_block);
  if (free_block->bytes > bytes) link(split(free_block, address + bytes));
  free_block->kind = BlockKind::kUsed;
  free_block->requested_bytes = 0;  // until it is allocated
  start.store(free_block, std::memory_order_relaxed);
  used_bytes_ += bytes;
  return free_block;
}

Block* BlockSpace::take_at(Block* free_block, std::uint64_t address, std::uint64_t bytes) {
  SLUICE_CHECK(free_block->kind == BlockKind::kFree && address >= free_block->address &&
               address + bytes <= free_block->address + free_block->bytes);
  if (address == free_block->address) return take(free_block, bytes);
  reserve_records(2);
  static_cast<void>(free_block->segment->start_at(address));  // may throw, so before any change
  const std::uint64_t before_bytes = address - free_block->address;
  Block* const block = split(free_block, address);
  resize(free_block, before_bytes);
  link(block);
  return take(block, bytes);
}

Block* BlockSpace::free(Block* block) {
  SLUICE_CHECK(block->kind == BlockKind::kUsed);
  block->segment->start_at(block->address).store(nullptr, std::memory_order_relaxed);
  block->kind = BlockKind::kFree;
  used_bytes_ -= block->bytes;
  return merge(block);
}

// Cuts one page out of a block, changes its kind and merges it with neighbours of the new kind.
// It needs at most two new records, for the parts before and after the page.
Block* BlockSpace::change_page(Block* block, std::uint64_t page_address, BlockKind kind) {
  SLUICE_CHECK(page_address % page_bytes_ == 0 && page_address >= block->address &&
               page_address + page_bytes_ <= block->address + block->bytes);
  reserve_records(2);
  unlink(block);
  Block* page = block;
  if (page_address > block->address) {
    page = split(block, page_address);
    link(block);
  }
  if (page->bytes > page_bytes_) link(split(page, page_address + page_bytes_));
  page->kind = kind;
  return merge(page);
}

Block* BlockSpace::fill(Block* unbacked, std::uint64_t page_address) {
  SLUICE_CHECK(unbacked->kind == BlockKind::kUnbacked);
  Block* const block = change_page(unbacked, page_address, BlockKind::kFree);
  backed_bytes_ += page_bytes_;
  return block;
}

Block* BlockSpace::unback(Block* free_block, std::uint64_t page_address) {
  SLUICE_CHECK(free_block->kind == BlockKind::kFree);
  Block* const block = change_page(free_block, page_address, BlockKind::kUnbacked);
  backed_bytes_ -= page_bytes_;
  return block;
}

std::uint64_t BlockSpace::first_page(const Block& block) const {
  return round_up(block.address, page_bytes_);
}

std::uint64_t BlockSpace::page_count(const Block& block) const {
  const std::uint64_t begin = first_page(block);
  const std::uint64_t end = (block.address + block.bytes) / page_bytes_ * page_bytes_;
  return end > begin ? (end - begin) / page_bytes_ : 0;
}

// Tries windows in the run of free and unbacked blocks that begins at `first`: one at the start of
// each block, and one against the end of the run. A window that begins inside a free block is never
// cheaper, because it touches the same unbacked pages or more; windows that begin inside an
// unbacked block are not tried. Gives up on a window when its cost exceeds the best one.
void BlockSpace::consider_run(
    Block* first, std::uint64_t bytes,
    const std::function<double(const AddressSegment&, std::uint64_t page)>& page_cost,
    std::optional<Window>& best) const {
  std::uint64_t end = 0;
  for (Block* block = first; block != nullptr && block->kind != BlockKind::kUsed;
       block = block->next) {
    end = block->address + block->bytes;
  }
  const auto consider = [&](Block* block, std::uint64_t address) {
    double cost = 0.0;
    for (Block* part = block; part->address < address + bytes; part = part->next) {
      if (part->kind == BlockKind::kUnbacked) {
        const std::uint64_t low = std::max(part->address, address / page_bytes_ * page_bytes_);
        const std::uint64_t high = std::min(part->address + part->bytes, address + bytes);
        for (std::uint64_t page = low; page < high; page += page_bytes_) {
          cost += page_cost(*part->segment, page);
          if (best && cost > best->cost) return;
        }
      }
      if (part->next == nullptr) break;
    }
    if (!best || cost < best->cost || (cost == best->cost && address < best->address)) {
      best = Window{address, block, cost};
    }
  };
  for (Block* block = first; block != nullptr && block->kind != BlockKind::kUsed;
       block = block->next) {
    if (end - block->address >= bytes) consider(block, block->address);
    // Also try a window at the end of the run if that end has memory.
    const bool is_last = block->address + block->bytes == end;
    if (is_last && block->kind == BlockKind::kFree && end - first->address >= bytes) {
      Block* holder = block;
      while (holder->address > end - bytes) holder = holder->previous;
      consider(holder, end - bytes);
    }
  }
}

std::optional<BlockSpace::Window> BlockSpace::find_window(
    std::uint64_t bytes,
    const std::function<double(const AddressSegment&, std::uint64_t page)>& page_cost) const {
  std::optional<Window> best;
  for (Block* block = lists_[kUnbackedList]; block != nullptr; block = block->list_next) {
    // Consider each run once, from its first unbacked block; one free block may stand before it.
    Block* first = block;
    if (first->previous != nullptr && first->previous->kind == BlockKind::kFree) {
      first = first->previous;
    }
    if (first->previous != nullptr && first->previous->kind == BlockKind::kUnbacked) continue;
    consider_run(first, bytes, page_cost, best);
  }
  return best;
}

void BlockSpace::visit_large_free(const std::function<bool(Block*)>& visit) const {
  const std::uint32_t least_bin = bin_of(page_bytes_);
  for (std::uint32_t bin = kBinCount; bin-- > least_bin;) {
    for (Block* block = lists_[bin]; block != nullptr; block = block->list_next) {
      if (page_count(*block) > 0 && !visit(block)) return;
    }
  }
}

void BlockSpace::visit_all(const std::function<void(const Block&)>& visit) const {
  for (const Block* start : range_starts_) {
    for (const Block* block = start; block != nullptr; block = block->next) visit(*block);
  }
}

void BlockSpace::check_invariants() const {
  std::uint64_t used_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::uint64_t unused_count = 0;  // free and unbacked blocks
  visit_all([&](const Block& block) {
    SLUICE_CHECK(block.bytes > 0 && block.bytes % kAlignment == 0);
    SLUICE_CHECK(block.address % kAlignment == 0);
    if (block.kind == BlockKind::kUsed) used_bytes += block.bytes;
    if (block.kind == BlockKind::kFree) free_bytes += block.bytes;
    if (block.kind != BlockKind::kUsed) ++unused_count;
    if (block.kind == BlockKind::kUnbacked) {
      SLUICE_CHECK(block.address % page_bytes_ == 0 && block.bytes % page_bytes_ == 0);
    }
    if (block.next != nullptr) {
      SLUICE_CHECK(block.next->previous == &block);
      SLUICE_CHECK(block.next->address == block.address + block.bytes);
      SLUICE_CHECK(block.kind == BlockKind::kUsed || block.next->kind != block.kind);
    }
  });
  SLUICE_CHECK(used_bytes == used_bytes_ && free_bytes == this->free_bytes());
  std::uint64_t listed_count = 0;
  for (std::uint32_t bin = 0; bin < kListCount; ++bin) {
    const bool marked = (occupied_[bin / 64] >> (bin % 64) & 1) != 0;
    SLUICE_CHECK(marked == (lists_[bin] != nullptr));
    SLUICE_CHECK((occupied_words_ >> (bin / 64) & 1) == (occupied_[bin / 64] != 0));
    for (const Block* block = lists_[bin]; block != nullptr; block = block->list_next) {
      SLUICE_CHECK(block->kind != BlockKind::kUsed && block->bin == bin);
      SLUICE_CHECK(list_of(block->kind, block->bytes) == bin);
      ++listed_count;
    }
  }
  SLUICE_CHECK(listed_count == unused_count);
}

}  // namespace sluice::allocator
