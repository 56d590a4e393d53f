// Axes of a plot: addresses without large holes, and ticks at round values.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace sluice::replay {

// Maps addresses to offsets with large holes cut out.
class CompactAddresses {
 public:
  struct Hole {
    std::uint64_t offset_bytes = 0;  // of the cut
    std::uint64_t bytes = 0;
  };
  // `ranges` are the used (address, bytes), in any order; they may overlap, and none wraps around.
  // Holes of hole_bytes or more are cut to hole_bytes / 4. 0 stands for an eighth of the used
  // bytes.
  CompactAddresses(std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges,
                   std::uint64_t hole_bytes);

  // Precondition: `address` lies within a given range or at its end.
  std::uint64_t offset_of(std::uint64_t address) const;
  std::uint64_t extent_bytes() const { return extent_bytes_; }
  const std::vector<Hole>& holes() const { return holes_; }

 private:
  std::vector<std::pair<std::uint64_t, std::uint64_t>> starts_;  // address, offset; ascending
  std::vector<Hole> holes_;
  std::uint64_t extent_bytes_ = 0;
};

// About `count` multiples of a round step, from 0 to at most `end`. The step is a power of two for
// bytes, and otherwise 1, 2 or 5 times a power of ten.
std::vector<std::uint64_t> byte_ticks(std::uint64_t end, std::size_t count);
std::vector<std::uint64_t> decimal_ticks(std::uint64_t end, std::size_t count);

}  // namespace sluice::replay
