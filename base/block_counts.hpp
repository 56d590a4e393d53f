// Counts by index that mostly grow by one from an index to the next, kept as runs. A unit of
// billions of elements has millions of norm blocks, but their number before each of them has a run
// or two for each tensor.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

namespace sluice {

class BlockCounts {
 public:
  void push_back(std::uint64_t count) { append(count, 1); }
  // The counts first, first + 1, ...
  void append(std::uint64_t first, std::size_t indices) {
    if (indices == 0) return;
    if (runs_.empty() || first != back() + 1) runs_.push_back({size_, first});
    size_ += indices;
  }
  std::size_t size() const { return size_; }
  // Precondition: index < size().
  std::uint64_t operator[](std::size_t index) const {
    const auto after =
        std::upper_bound(runs_.begin(), runs_.end(), index,
                         [](std::size_t value, const Run& run) { return value < run.first_index; });
    const Run& run = *std::prev(after);
    return run.first_count + (index - run.first_index);
  }
  std::uint64_t back() const { return (*this)[size_ - 1]; }
  bool operator==(const BlockCounts&) const = default;

 private:
  struct Run {
    std::size_t first_index = 0;
    std::uint64_t first_count = 0;
    bool operator==(const Run&) const = default;
  };
  std::vector<Run> runs_;
  std::size_t size_ = 0;
};

}  // namespace sluice
