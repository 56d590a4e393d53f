// The structures of PyTorch's caching allocator: blocks in a list by address within their segment,
// free ones also in ordered sets.
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <tuple>
#include <vector>

namespace sluice {

struct CachingPool;

// Addresses for more than the device holds; mapped by the page.
struct ExpandableSegment {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t page_bytes = 0;
};

struct CachingBlock {
  std::uint64_t stream = 0;
  std::uint64_t bytes = 0;
  std::uint64_t address = 0;
  CachingPool* pool = nullptr;
  ExpandableSegment* segment = nullptr;  // null: all of one cudaMalloc
  CachingBlock* prev = nullptr;          // neighbours in the segment
  CachingBlock* next = nullptr;
  bool allocated = false;
  bool pending = false;  // given back; events of other streams are outstanding
  bool mapped = true;

  bool is_split() const { return prev != nullptr || next != nullptr; }
  bool is_free() const { return !allocated && !pending; }
  // Puts this block between two neighbours, of which either may be null.
  void splice(CachingBlock* before, CachingBlock* after) {
    if (before != nullptr) before->next = this;
    prev = before;
    if (after != nullptr) after->prev = this;
    next = after;
  }
};

struct CachingOrderBySize {
  bool operator()(const CachingBlock* a, const CachingBlock* b) const {
    return std::tie(a->stream, a->bytes, a->address) < std::tie(b->stream, b->bytes, b->address);
  }
};

struct CachingOrderByAddress {
  bool operator()(const CachingBlock* a, const CachingBlock* b) const {
    return std::tie(a->stream, a->address) < std::tie(b->stream, b->address);
  }
};

struct CachingPool {
  std::set<CachingBlock*, CachingOrderBySize> blocks;       // free and mapped
  std::set<CachingBlock*, CachingOrderByAddress> unmapped;  // of expandable segments
  bool is_small = false;
  bool is_private = false;
};

// Blocks by address that stays; dropped ones are used again.
class CachingBlockStore {
 public:
  CachingBlock* make(const CachingBlock& value) {
    if (spare_.empty()) return &blocks_.emplace_back(value);
    CachingBlock* const block = spare_.back();
    spare_.pop_back();
    *block = value;
    return block;
  }
  void drop(CachingBlock* block) { spare_.push_back(block); }

 private:
  std::deque<CachingBlock> blocks_;
  std::vector<CachingBlock*> spare_;
};

}  // namespace sluice
