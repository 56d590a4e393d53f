// Depth-first search for a packing within a capacity: boxes of known lifetimes, some of them fixed.
//
// Any packing can be sunk until no box fits lower. Taken by offset, its boxes then stand one after
// the other on the skyline of those before ("canonical solutions", Moffitt, "MiniMalloc: A
// Lightweight Memory Allocator for Hardware-Accelerated Machine Learning", ASPLOS 2023). The search
// places boxes in that way, lowest first, and turns back where what is left cannot be stacked below
// the capacity. Beyond the paper's rules:
// - a box that was passed over at its lowest offset must be lifted by another, so the lowest top
//   that meets it bounds it; once that bound fails, no later choice at the node can succeed;
// - at every position, what cannot lie below a height must fit above it, for each height;
// - of boxes alike in lifetime and size the first in order lies lowest;
// - sub-problems that have failed are remembered, whatever lies beneath them, by keys of 64 bits:
//   but for a collision of keys, kImpossible is a proof.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace sluice::packing {

// Sizes and offsets, in a unit of the caller's; below 2^30, so that sums of two do not overflow.
using SkylineUnits = std::int32_t;

struct SkylineBox {
  std::int32_t lower = 0;  // lives at positions [lower, upper)
  std::int32_t upper = 0;
  SkylineUnits size = 0;           // > 0
  SkylineUnits fixed_offset = -1;  // >= 0: stays there
};

struct SkylineProblem {
  std::vector<SkylineBox> boxes;  // at one height the first is tried first
  std::int32_t position_count = 0;
  SkylineUnits capacity = 0;
};

enum class SkylineOutcome : std::uint8_t { kPacked, kImpossible, kGaveUp };

class SkylineSearch {
 public:
  // Gives up after about `work_budget` looks at a position of a box, some 4 ns each. Fixed boxes
  // must lie apart and below the capacity.
  SkylineSearch(const SkylineProblem& problem, std::uint64_t work_budget);
  ~SkylineSearch();
  SkylineSearch(const SkylineSearch&) = delete;
  SkylineSearch& operator=(const SkylineSearch&) = delete;

  SkylineOutcome run();  // once
  // Of kPacked, by box.
  const std::vector<SkylineUnits>& offsets() const;
  std::uint64_t work() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::packing
