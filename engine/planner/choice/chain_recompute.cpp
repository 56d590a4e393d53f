// An interval [first, last] of the chain has its input and, once backward has come to it, the
// gradient of its last output. It is processed in one of two ways:
//   - The first unit runs and leaves its parts and output. The rest of the interval is processed in
//     the memory that remains, and the unit's backward pass follows.
//   - The units before some `middle` run and leave only the input of `middle`. Then [middle, last]
//     is processed next to that input, and [first, middle - 1] after it, in all of the memory.
// The second way repeats the units before `middle`, so all units of an interval have run equally
// often when it begins. That number and the tree of intervals give the runs of each unit, and the
// other way round.
#include "engine/planner/choice/chain_recompute.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::planner {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Sizes in slots.
std::vector<ChainUnit> in_slots(std::vector<ChainUnit> chain, std::uint64_t slot_bytes) {
  for (ChainUnit& unit : chain) {
    for (std::uint64_t* bytes : {&unit.output_bytes, &unit.gradient_bytes, &unit.parts_bytes,
                                 &unit.forward_bytes, &unit.backward_bytes}) {
      *bytes = ceil_div(*bytes, slot_bytes);
    }
  }
  return chain;
}

class ChainTable {
 public:
  ChainTable(std::vector<ChainUnit> chain, std::uint64_t memory)
      : chain_(std::move(chain)), memory_(memory), count_(chain_.size()) {
    equal_ = std::all_of(chain_.begin(), chain_.end() - 1,
                         [&](const ChainUnit& unit) { return unit == chain_.front(); });
    seconds_.resize((equal_ ? 2 : count_) * count_ * (memory + 1), kNever);
    for (std::size_t length = 1; length <= count_; ++length) {
      for (std::size_t first = 0; first + length <= count_; ++first) {
        // Intervals of equal units are all alike.
        const bool known = equal_ && first > 0 && first + length < count_;
        if (!known) fill(first, first + length - 1);
      }
    }
  }

  // memory: at most memory().
  std::optional<std::vector<ChainRuns>> runs(std::uint64_t memory) const {
    if (at(0, count_ - 1, memory) == kNever) return std::nullopt;
    std::vector<ChainRuns> runs(count_);
    follow(0, count_ - 1, memory, 0, runs);
    return runs;
  }
  // The least memory in which the chain is possible; memory() if it never is.
  std::uint64_t least_memory() const {
    std::uint64_t least = 0;
    while (least < memory_ && at(0, count_ - 1, least) == kNever) ++least;
    return least;
  }
  std::uint64_t memory() const { return memory_; }

 private:
  struct Way {
    double seconds = kNever;
    std::size_t middle = 0;  // 0: the first unit leaves its parts
  };

  double at(std::size_t first, std::size_t last, std::uint64_t memory) const {
    const std::size_t row = equal_ ? (last + 1 == count_ ? 1 : 0) : first;
    const std::size_t column = equal_ ? last - first : last;
    return seconds_[(row * count_ + column) * (memory_ + 1) + memory];
  }

  void fill(std::size_t first, std::size_t last) {
    for (std::uint64_t memory = 0; memory <= memory_; ++memory) {
      const double seconds = best(first, last, memory).seconds;
      const std::size_t row = equal_ ? (last + 1 == count_ ? 1 : 0) : first;
      const std::size_t column = equal_ ? last - first : last;
      seconds_[(row * count_ + column) * (memory_ + 1) + memory] = seconds;
    }
  }

  // Shorter intervals are filled already.
  Way best(std::size_t first, std::size_t last, std::uint64_t memory) const {
    const ChainUnit& unit = chain_[first];
    const std::uint64_t gradient = chain_[last].gradient_bytes;
    Way way;
    if (unit.forward_bytes + gradient > memory) return way;
    if (unit.parts_bytes + unit.backward_bytes <= memory) {
      const std::uint64_t left = unit.parts_bytes + unit.output_bytes;
      if (first == last) {
        way.seconds = unit.forward_s;
      } else if (left <= memory) {
        way.seconds = unit.forward_s + at(first + 1, last, memory - left);
      }
    }
    double forward_s = 0;
    for (std::size_t middle = first + 1; middle <= last; ++middle) {
      const ChainUnit& before = chain_[middle - 1];
      const std::uint64_t input = middle - 1 > first ? chain_[middle - 2].output_bytes : 0;
      if (input + before.forward_bytes + gradient > memory) break;
      forward_s += before.forward_s;
      if (before.output_bytes > memory) continue;
      const double seconds = forward_s + at(middle, last, memory - before.output_bytes) +
                             at(first, middle - 1, memory);
      if (seconds < way.seconds) way = {seconds, middle};
    }
    return way;
  }

  void follow(std::size_t first, std::size_t last, std::uint64_t memory, std::int32_t run,
              std::vector<ChainRuns>& runs) const {
    const Way way = best(first, last, memory);
    SLUICE_CHECK(way.seconds < kNever);
    const std::size_t middle = way.middle == 0 ? first + 1 : way.middle;
    if (middle <= last) runs[middle - 1].output_run = run;
    if (way.middle == 0) {
      runs[first].parts_run = run;
      if (first == last) return;
      const std::uint64_t left = chain_[first].parts_bytes + chain_[first].output_bytes;
      return follow(first + 1, last, memory - left, run, runs);
    }
    follow(middle, last, memory - chain_[middle - 1].output_bytes, run, runs);
    follow(first, middle - 1, memory, run + 1, runs);
  }

  std::vector<ChainUnit> chain_;
  std::uint64_t memory_;
  std::size_t count_;
  bool equal_;  // all units but the last
  // By interval and memory.
  std::vector<double> seconds_;
};

ChainTable make_table(const std::vector<ChainUnit>& chain, std::uint64_t memory_bytes,
                      std::uint64_t slots) {
  SLUICE_CHECK(!chain.empty() && slots > 0);
  const std::uint64_t slot_bytes = ceil_div(memory_bytes, slots);
  return {in_slots(chain, slot_bytes), memory_bytes / slot_bytes};
}

// The peak of [first, last] if its units have run `run` times before.
std::uint64_t peak(const std::vector<ChainUnit>& chain, const std::vector<ChainRuns>& runs,
                   std::size_t first, std::size_t last, std::int32_t run) {
  const ChainUnit& unit = chain[first];
  const std::uint64_t gradient = chain[last].gradient_bytes;
  if (runs[first].parts_run == run) {
    std::uint64_t most =
        std::max(unit.forward_bytes + gradient, unit.parts_bytes + unit.backward_bytes);
    if (first == last) return most;
    const std::uint64_t rest = peak(chain, runs, first + 1, last, run);
    return std::max(most, unit.parts_bytes + unit.output_bytes + rest);
  }
  std::uint64_t most = 0;
  std::size_t unit_before = first;
  for (;; ++unit_before) {
    const std::uint64_t input = unit_before > first ? chain[unit_before - 1].output_bytes : 0;
    most = std::max(most, input + chain[unit_before].forward_bytes + gradient);
    if (unit_before == last || runs[unit_before].output_run == run) break;
  }
  most = std::max(most, peak(chain, runs, first, unit_before, run + 1));
  if (unit_before == last) return most;
  const std::uint64_t rest = peak(chain, runs, unit_before + 1, last, run);
  return std::max(most, chain[unit_before].output_bytes + rest);
}

}  // namespace

std::optional<std::vector<ChainRuns>> least_recomputation(const std::vector<ChainUnit>& chain,
                                                          std::uint64_t memory_bytes,
                                                          std::uint64_t slots) {
  if (memory_bytes == 0) return std::nullopt;
  const ChainTable table = make_table(chain, memory_bytes, slots);
  return table.runs(table.memory());
}

std::optional<std::vector<ChainRuns>> most_frugal_recomputation(const std::vector<ChainUnit>& chain,
                                                                std::uint64_t memory_bytes,
                                                                std::uint64_t slots) {
  if (memory_bytes == 0) return std::nullopt;
  const ChainTable table = make_table(chain, memory_bytes, slots);
  return table.runs(table.least_memory());
}

std::uint64_t chain_peak_bytes(const std::vector<ChainUnit>& chain,
                               const std::vector<ChainRuns>& runs) {
  SLUICE_CHECK(!chain.empty() && runs.size() == chain.size());
  return peak(chain, runs, 0, chain.size() - 1, 0);
}

}  // namespace sluice::planner
