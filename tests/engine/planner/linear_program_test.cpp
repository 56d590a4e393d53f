// The simplex method against a search over the corners of small programs.
#include "engine/planner/bound/linear_program.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.hpp"

namespace sluice::planner {
namespace {

TEST(LinearProgram, FindsTheCornerOfATextbookProgram) {
  // Chvátal, chapter 1: maximise 5a + 4b + 3c.
  LinearProgram program({-5, -4, -3});
  program.at_most({2, 3, 1}, 5);
  program.at_most({4, 1, 2}, 11);
  program.at_most({3, 4, 2}, 8);
  const auto found = program.minimum();
  ASSERT_TRUE(found.has_value());
  EXPECT_NEAR(found->cost, -13, 1e-9);
  EXPECT_NEAR(found->x[0], 2, 1e-9);
  EXPECT_NEAR(found->x[1], 0, 1e-9);
  EXPECT_NEAR(found->x[2], 1, 1e-9);
}

TEST(LinearProgram, StartsOutsideOfTheOriginAndHoldsEqualities) {
  LinearProgram program({1, 2});
  program.equals({1, 1}, 4);
  program.at_least({0, 1}, 1);
  const auto found = program.minimum();
  ASSERT_TRUE(found.has_value());
  EXPECT_NEAR(found->cost, 5, 1e-9);
}

TEST(LinearProgram, SaysWhereRowsContradictEachOther) {
  LinearProgram program({1});
  program.at_least({1}, 2);
  program.at_most({1}, 1);
  EXPECT_FALSE(program.minimum().has_value());
}

// A row in bytes means the same as in budgets.
TEST(LinearProgram, TheUnitOfARowChangesNothing) {
  int solved = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const CounterRng random(seed, stream_of("test/linear_program/units"));
    std::uint64_t drawn = 0;
    const auto real = [&] { return static_cast<double>(random.below(drawn++, 2001)) / 1000 - 1; };
    const std::vector<double> costs{real() + 1, real() + 1, real() + 1};
    LinearProgram plain(costs), scaled(costs), in_bytes(costs);
    for (int row = 0; row < 6; ++row) {
      const std::vector<double> coefficients{real(), real(), real()};
      // Every third row has a limit of 0: no budget to count in.
      const double limit = row % 3 == 0 ? 0 : real();
      const auto add = [&](LinearProgram& program, double unit) {
        std::vector<double> all = coefficients;
        for (double& coefficient : all) coefficient *= unit;
        program.at_most(std::move(all), limit * unit);
      };
      add(plain, 1);
      add(scaled, std::ldexp(1.0, static_cast<int>(random.below(drawn++, 81)) - 40));
      add(in_bytes, 1 + static_cast<double>(random.below(drawn++, std::uint64_t{1} << 40)));
    }
    const auto found = plain.minimum(), of_scaled = scaled.minimum(), of_bytes = in_bytes.minimum();
    ASSERT_EQ(of_scaled.has_value(), found.has_value()) << seed;
    ASSERT_EQ(of_bytes.has_value(), found.has_value()) << seed;
    if (!found) continue;
    ++solved;
    EXPECT_EQ(of_scaled->x, found->x) << seed;
    EXPECT_NEAR(of_bytes->cost, found->cost, 1e-9) << seed;
  }
  EXPECT_GT(solved, 50);
}

// Two variables: the minimum is at a crossing of two rows or axes.
TEST(LinearProgram, EqualsTheBestCrossingOfRandomPrograms) {
  int solved = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const CounterRng random(seed, stream_of("test/linear_program"));
    std::uint64_t drawn = 0;
    const auto real = [&] { return static_cast<double>(random.below(drawn++, 2001)) / 1000 - 1; };
    const std::array<double, 2> costs{real() + 1, real() + 1};
    LinearProgram program({costs[0], costs[1]});
    std::vector<std::array<double, 3>> rows{{-1, 0, 0}, {0, -1, 0}};
    for (int row = 0; row < 4; ++row) {
      rows.push_back({real(), real(), real()});
      program.at_most({rows.back()[0], rows.back()[1]}, rows.back()[2]);
    }
    double best = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        const double det = rows[i][0] * rows[j][1] - rows[i][1] * rows[j][0];
        if (std::abs(det) < 1e-6) continue;
        const double x = (rows[i][2] * rows[j][1] - rows[i][1] * rows[j][2]) / det;
        const double y = (rows[i][0] * rows[j][2] - rows[i][2] * rows[j][0]) / det;
        const bool inside = std::all_of(rows.begin(), rows.end(), [&](const auto& row) {
          return row[0] * x + row[1] * y <= row[2] + 1e-7;
        });
        if (inside) best = std::min(best, costs[0] * x + costs[1] * y);
      }
    }
    const auto found = program.minimum();
    ASSERT_EQ(found.has_value(), std::isfinite(best)) << seed;
    if (!found) continue;
    ++solved;
    EXPECT_NEAR(found->cost, best, 1e-6) << seed;
  }
  EXPECT_GT(solved, 50);
}

}  // namespace
}  // namespace sluice::planner
