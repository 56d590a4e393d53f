// The structures of PyTorch's caching allocator. Blocks form a list by address within their
// segment. Free blocks are also in ordered sets.
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <tuple>
#include <vector>

namespace sluice::replay {

struct TorchPool;

// A range of addresses larger than the device, which is mapped by the page.
struct ExpandableSegment {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t page_bytes = 0;
};

struct TorchBlock {
  std::uint64_t stream = 0;
  std::uint64_t bytes = 0;
  std::uint64_t address = 0;
  TorchPool* pool = nullptr;
  ExpandableSegment* segment = nullptr;  // null for a segment of one cudaMalloc
  TorchBlock* prev = nullptr;            // neighbours in the segment
  TorchBlock* next = nullptr;
  bool allocated = false;
  bool pending = false;  // freed, while events of other streams are outstanding
  bool mapped = true;

  bool is_split() const { return prev != nullptr || next != nullptr; }
  bool is_free() const { return !allocated && !pending; }
  // Puts this block between two neighbours; either may be null.
  void splice(TorchBlock* before, TorchBlock* after) {
    if (before != nullptr) before->next = this;
    prev = before;
    if (after != nullptr) after->prev = this;
    next = after;
  }
};

struct TorchOrderBySize {
  bool operator()(const TorchBlock* a, const TorchBlock* b) const {
    return std::tie(a->stream, a->bytes, a->address) < std::tie(b->stream, b->bytes, b->address);
  }
};

struct TorchOrderByAddress {
  bool operator()(const TorchBlock* a, const TorchBlock* b) const {
    return std::tie(a->stream, a->address) < std::tie(b->stream, b->address);
  }
};

struct TorchPool {
  std::set<TorchBlock*, TorchOrderBySize> blocks;       // free and mapped
  std::set<TorchBlock*, TorchOrderByAddress> unmapped;  // of expandable segments
  bool is_small = false;
  bool is_private = false;
};

// Allocates blocks at addresses that never change, and reuses dropped ones.
class TorchBlockStore {
 public:
  TorchBlock* make(const TorchBlock& value) {
    if (spare_.empty()) return &blocks_.emplace_back(value);
    TorchBlock* const block = spare_.back();
    spare_.pop_back();
    *block = value;
    return block;
  }
  void drop(TorchBlock* block) { spare_.push_back(block); }

 private:
  std::deque<TorchBlock> blocks_;
  std::vector<TorchBlock*> spare_;
};

}  // namespace sluice::replay
