// Only searches that take longer than a comparison are kept, and only the latest of them: a step
// has a few memories, and the next question is mostly about the step after.
#include "allocator/packing/packing_memo.hpp"

#include <algorithm>

namespace sluice::packing {
namespace {

constexpr std::size_t kMostKnown = 24;
constexpr std::size_t kFewBoxes = 16;  // are searched again

}  // namespace

std::uint64_t hash_of(std::span<const Box> boxes) {
  std::uint64_t hash = boxes.size();
  const auto mix = [&hash](std::uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 29;
  };
  for (const Box& box : boxes) {
    mix(static_cast<std::uint64_t>(box.lower) << 32 | static_cast<std::uint32_t>(box.upper));
    mix(box.bytes);
  }
  return hash;
}

// The boxes tell the number of positions, since each position is the start of one.
BoxPacking PackingMemo::search(std::span<const Box> boxes, std::int32_t position_count,
                               std::uint64_t target_bytes, std::uint64_t work_budget,
                               std::uint64_t base_bytes) {
  if (boxes.size() <= kFewBoxes) {
    return search_packing(boxes, position_count, target_bytes, work_budget, base_bytes);
  }
  const std::uint64_t hash = hash_of(boxes);
  const auto found = std::find_if(known_.begin(), known_.end(), [&](const Known& known) {
    return known.hash == hash && known.target_bytes == target_bytes &&
           known.work_budget == work_budget && known.base_bytes == base_bytes &&
           std::equal(boxes.begin(), boxes.end(), known.boxes.begin(), known.boxes.end());
  });
  if (found != known_.end()) {
    ++hits_;
    known_.splice(known_.begin(), known_, found);
    return known_.front().packing;
  }
  known_.push_front({hash,
                     {boxes.begin(), boxes.end()},
                     target_bytes,
                     work_budget,
                     base_bytes,
                     search_packing(boxes, position_count, target_bytes, work_budget, base_bytes)});
  if (known_.size() > kMostKnown) known_.pop_back();
  return known_.front().packing;
}

}  // namespace sluice::packing
