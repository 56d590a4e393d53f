// Cuts of a model into stages, compared with all possible cuts.
#include "engine/parallel/stages.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/rng.hpp"
#include "tests/support/sweep.hpp"

namespace sluice::parallel {
namespace {

std::uint64_t cost_of(const std::vector<std::uint64_t>& costs, const schedule::UnitRange& range) {
  return std::accumulate(costs.begin() + range.begin, costs.begin() + range.end, std::uint64_t{0});
}

// The least cost of the most expensive of `stages` runs, by trying all cuts.
std::uint64_t least_of_all_cuts(const std::vector<std::uint64_t>& costs, std::size_t begin,
                                std::int32_t stages) {
  std::uint64_t cost = 0;
  if (stages == 1) {
    return std::accumulate(costs.begin() + static_cast<std::ptrdiff_t>(begin), costs.end(), cost);
  }
  std::uint64_t least = UINT64_MAX;
  for (std::size_t end = begin + 1; end + static_cast<std::size_t>(stages) <= costs.size() + 1;
       ++end) {
    cost += costs[end - 1];
    least = std::min(least, std::max(cost, least_of_all_cuts(costs, end, stages - 1)));
  }
  return least;
}

TEST(CutStages, IsAsGoodAsTheBestOfAllCuts) {
  const CounterRng random(3, stream_of("test/cut_stages"));
  std::uint64_t draw = 0;
  for (std::size_t trial = 0; trial < testing::sweep(200); ++trial) {
    std::vector<std::uint64_t> costs(1 + random.below(draw++, 10));
    for (std::uint64_t& cost : costs) cost = random.below(draw++, 20);
    const auto stages = static_cast<std::int32_t>(1 + random.below(draw++, costs.size()));
    const std::vector<schedule::UnitRange> cut = cut_stages(costs, stages);
    ASSERT_EQ(std::ssize(cut), stages);
    std::int32_t at = 0;
    std::uint64_t most = 0;
    for (const schedule::UnitRange& range : cut) {
      ASSERT_EQ(range.begin, at);
      ASSERT_GT(range.end, range.begin);
      at = range.end;
      most = std::max(most, cost_of(costs, range));
    }
    ASSERT_EQ(at, std::ssize(costs));
    ASSERT_EQ(most, least_of_all_cuts(costs, 0, stages));
  }
}

// The least cost of the most expensive run, of all cuts from `begin` on in which no run of the
// stages from `stage` on has more bytes; the largest number if there is none.
std::uint64_t least_within(const std::vector<std::uint64_t>& costs, const StageBytes& bytes,
                           std::uint64_t most_bytes, std::size_t begin, std::size_t stage) {
  constexpr std::uint64_t kNone = ~std::uint64_t{0};
  if (stage == bytes.size()) return begin == costs.size() ? 0 : kNone;
  std::uint64_t least = kNone, cost = 0, taken = 0;
  for (std::size_t end = begin + 1; end <= costs.size(); ++end) {
    cost += costs[end - 1];
    taken += bytes[stage][end - 1];
    if (taken > most_bytes) break;
    const std::uint64_t rest = least_within(costs, bytes, most_bytes, end, stage + 1);
    least = std::min(least, std::max(cost, rest));
  }
  return least;
}

TEST(CutStages, KeepsWithinTheBytesOfEachStage) {
  const CounterRng random(4, stream_of("test/cut_stages"));
  std::uint64_t draw = 0;
  std::size_t impossible = 0;
  const std::size_t trials = testing::sweep(200);
  for (std::size_t trial = 0; trial < trials; ++trial) {
    std::vector<std::uint64_t> costs(1 + random.below(draw++, 9));
    for (std::uint64_t& cost : costs) cost = random.below(draw++, 20);
    StageBytes bytes(1 + random.below(draw++, costs.size()),
                     std::vector<std::uint64_t>(costs.size()));
    for (auto& stage : bytes) {
      for (std::uint64_t& of_unit : stage) of_unit = random.below(draw++, 10);
    }
    const std::uint64_t least_bytes = least_stage_bytes(bytes);
    EXPECT_TRUE(cut_stages_within(costs, bytes, least_bytes));
    if (least_bytes > 0) {
      EXPECT_FALSE(cut_stages_within(costs, bytes, least_bytes - 1));
    }
    const std::uint64_t most_bytes = random.below(draw++, 30);
    const auto cut = cut_stages_within(costs, bytes, most_bytes);
    const std::uint64_t expected = least_within(costs, bytes, most_bytes, 0, 0);
    ASSERT_EQ(cut.has_value(), expected != ~std::uint64_t{0});
    impossible += cut ? 0 : 1;
    if (!cut) continue;
    std::uint64_t most = 0;
    for (std::size_t stage = 0; stage < cut->size(); ++stage) {
      most = std::max(most, cost_of(costs, (*cut)[stage]));
      EXPECT_LE(cost_of(bytes[stage], (*cut)[stage]), most_bytes);
    }
    ASSERT_EQ(most, expected);
  }
  EXPECT_GT(impossible, 0u);
  EXPECT_LT(impossible, trials);
}

// The least sum of squared costs, of all cuts from `begin` on whose runs cost `most` at most.
std::uint64_t least_squares(const std::vector<std::uint64_t>& costs, std::size_t begin,
                            std::int32_t stages, std::uint64_t most) {
  constexpr std::uint64_t kNone = ~std::uint64_t{0};
  if (stages == 0) return begin == costs.size() ? 0 : kNone;
  std::uint64_t least = kNone, cost = 0;
  for (std::size_t end = begin + 1; end <= costs.size(); ++end) {
    cost += costs[end - 1];
    if (cost > most) break;
    const std::uint64_t rest = least_squares(costs, end, stages - 1, most);
    if (rest != kNone) least = std::min(least, cost * cost + rest);
  }
  return least;
}

TEST(CutStages, TheStagesBelowTheSlowestAreEven) {
  const CounterRng random(5, stream_of("test/cut_stages"));
  std::uint64_t draw = 0;
  for (std::size_t trial = 0; trial < testing::sweep(200); ++trial) {
    std::vector<std::uint64_t> costs(1 + random.below(draw++, 10));
    for (std::uint64_t& cost : costs) cost = random.below(draw++, 20);
    const auto stages = static_cast<std::int32_t>(1 + random.below(draw++, costs.size()));
    std::uint64_t squares = 0;
    for (const schedule::UnitRange& range : cut_stages(costs, stages)) {
      squares += cost_of(costs, range) * cost_of(costs, range);
    }
    ASSERT_EQ(squares, least_squares(costs, 0, stages, least_of_all_cuts(costs, 0, stages)));
  }
}

// 128 layers between an embedding that costs nothing and a head of half a layer, as of a model of 1
// T parameters on 25 stages.
TEST(CutStages, NoStageHasTheEmbeddingAlone) {
  std::vector<std::uint64_t> costs(130, 1'000'000'000);
  costs.front() = 1;
  costs.back() = 500'000'000;
  for (const schedule::UnitRange& range : cut_stages(costs, 25)) {
    EXPECT_GE(cost_of(costs, range), 5'000'000'000);
    EXPECT_LE(cost_of(costs, range), 6'000'000'000);
  }
}

TEST(CutStages, CutsEqualUnitsEvenly) {
  const std::vector<schedule::UnitRange> cut = cut_stages({1, 1, 1, 1, 1, 1}, 3);
  EXPECT_EQ(cut, (std::vector<schedule::UnitRange>{{0, 2}, {2, 4}, {4, 6}}));
}

}  // namespace
}  // namespace sluice::parallel
