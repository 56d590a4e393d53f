// The structures of GMLake: primitive blocks, which own the handles (pages) that back them, and
// stitched blocks, which map pages of several primitive blocks once more. A page serves one of
// them at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <set>
#include <tuple>
#include <vector>

namespace sluice::replay {

inline constexpr std::uint64_t kLakePage = std::uint64_t{2} << 20;

struct LakeBlock;
struct StitchedBlock;

struct LakePage {
  LakeBlock* home = nullptr;
  bool is_free = true;
  std::vector<StitchedBlock*> stitched;  // that map it too
};

struct LakeOrder {
  template <typename Block>
  bool operator()(const Block* a, const Block* b) const {
    return std::tie(a->stream, a->bytes, a->address) < std::tie(b->stream, b->bytes, b->address);
  }
};

struct LakePool {
  std::set<LakeBlock*, LakeOrder> blocks;  // free
  bool is_small = false;
};

// A primitive block (pBlock), or a block of a segment that consists of no handles.
struct LakeBlock {
  std::uint64_t stream = 0;
  std::uint64_t bytes = 0;
  std::uint64_t address = 0;
  LakePool* pool = nullptr;
  LakeBlock* prev = nullptr;  // neighbours in the segment
  LakeBlock* next = nullptr;
  LakePage* pages = nullptr;  // bytes / kLakePage of them; null: no handles
  bool allocated = false;     // by a caller, or by a stitched block
  bool pending = false;

  bool is_split() const { return prev != nullptr || next != nullptr; }
  bool is_free() const { return !allocated && !pending; }
  std::size_t page_count() const {
    return pages == nullptr ? 0 : static_cast<std::size_t>(bytes / kLakePage);
  }
  void own_pages() {
    for (std::size_t i = 0; i < page_count(); ++i) pages[i].home = this;
  }
  void splice(LakeBlock* before, LakeBlock* after) {
    if (before != nullptr) before->next = this;
    prev = before;
    if (after != nullptr) after->prev = this;
    next = after;
  }
};

// A stitched block (sBlock).
struct StitchedBlock {
  std::uint64_t stream = 0;
  std::uint64_t bytes = 0;
  std::uint64_t address = 0;
  std::vector<LakePage*> pages;  // null: given back to the device
  std::size_t free_pages = 0;
  std::size_t used_pages = 0;  // in use through this block: its first ones
  bool is_active = false;      // held by a caller
  bool is_condemned = false;   // lost a page: goes when its caller gives it back
  std::list<StitchedBlock>::iterator self;
};

using StitchedPool = std::set<StitchedBlock*, LakeOrder>;

// Blocks by address that stays; dropped ones are used again.
class LakeBlockStore {
 public:
  LakeBlock* make(const LakeBlock& value) {
    if (spare_.empty()) return &blocks_.emplace_back(value);
    LakeBlock* const block = spare_.back();
    spare_.pop_back();
    *block = value;
    return block;
  }
  void drop(LakeBlock* block) { spare_.push_back(block); }

 private:
  std::deque<LakeBlock> blocks_;
  std::vector<LakeBlock*> spare_;
};

}  // namespace sluice::replay
