// Cuts of a model into stages, beside all possible cuts.
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

TEST(CutStages, CutsEqualUnitsEvenly) {
  const std::vector<schedule::UnitRange> cut = cut_stages({1, 1, 1, 1, 1, 1}, 3);
  EXPECT_EQ(cut, (std::vector<schedule::UnitRange>{{0, 2}, {2, 4}, {4, 6}}));
}

}  // namespace
}  // namespace sluice::parallel
