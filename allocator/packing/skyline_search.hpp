// Depth-first search for a packing within a capacity. Boxes have known lifetimes; some are fixed.
//
// In any packing, boxes can sink until none fits lower. In the order of offsets, each box then
// stands on the skyline of those before it ("canonical solutions", Moffitt, "MiniMalloc: A
// Lightweight Memory Allocator for Hardware-Accelerated Machine Learning", ASPLOS 2023). The search
// places boxes in that order, lowest first. It turns back when the remaining boxes cannot be
// stacked below the capacity. It has four rules beyond the paper's:
// - A box that was passed over at its lowest offset must be lifted by another box. So the lowest
//   top that meets it is a bound for it. Once that bound fails, no later choice at the node can
//   succeed.
// - For each height and at every position, the boxes that cannot lie below the height must fit
//   above.
// - Of boxes with equal lifetime and size, the first in order lies lowest.
// - Sub-problems that failed are remembered by keys of 64 bits, whatever lies beneath them. Unless
//   two keys collide, kImpossible is a proof.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace sluice::packing {

// Sizes and offsets, in a unit that the caller chooses. They are below 2^30, so that the sum of two
// does not overflow.
using SkylineUnits = std::int32_t;

struct SkylineBox {
  std::int32_t lower = 0;  // the box lives at positions [lower, upper)
  std::int32_t upper = 0;
  SkylineUnits size = 0;           // > 0
  SkylineUnits fixed_offset = -1;  // the box stays there if >= 0
};

struct SkylineProblem {
  std::vector<SkylineBox> boxes;  // at one height, the first is tried first
  std::int32_t position_count = 0;
  SkylineUnits capacity = 0;
};

enum class SkylineOutcome : std::uint8_t { kPacked, kImpossible, kGaveUp };

class SkylineSearch {
 public:
  // The search gives up after it has looked about `work_budget` times at a position of a box, some
  // 4 ns each. Precondition: fixed boxes share no byte and end at most at the capacity.
  SkylineSearch(const SkylineProblem& problem, std::uint64_t work_budget);
  ~SkylineSearch();
  SkylineSearch(const SkylineSearch&) = delete;
  SkylineSearch& operator=(const SkylineSearch&) = delete;

  SkylineOutcome run();  // call it once
  // The offset of each box, after kPacked.
  const std::vector<SkylineUnits>& offsets() const;
  std::uint64_t work() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::packing
