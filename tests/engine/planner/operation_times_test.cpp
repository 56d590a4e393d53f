#include "engine/planner/price/operation_times.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace sluice::testing {
namespace {

// Seconds of a product that keeps no machine's rate: exponents below 1, as with fixed overheads.
double law(const planner::OperationSize& size) {
  return 1e-9 * std::pow(static_cast<double>(size[0]), 0.9) *
         std::pow(static_cast<double>(size[1]), 0.8) * std::pow(static_cast<double>(size[2]), 0.95);
}

planner::OperationGrid grid_of_law() {
  planner::OperationGrid grid{planner::TimedOperation::kGemmNN,
                              DType::kF32,
                              {{{16, 64, 1024}, {32, 512}, {8, 100, 2000}}},
                              {}};
  for (const std::int64_t m : grid.axes[0]) {
    for (const std::int64_t n : grid.axes[1]) {
      for (const std::int64_t k : grid.axes[2]) grid.seconds.push_back(law({m, n, k}));
    }
  }
  return grid;
}

TEST(OperationGrid, IsExactAtItsPoints) {
  const planner::OperationGrid grid = grid_of_law();
  for (const std::int64_t m : grid.axes[0]) {
    for (const std::int64_t n : grid.axes[1]) {
      for (const std::int64_t k : grid.axes[2]) {
        EXPECT_NEAR(grid.seconds_at({m, n, k}) / law({m, n, k}), 1, 1e-12);
      }
    }
  }
}

TEST(OperationGrid, FollowsAPowerLawBetweenThem) {
  const planner::OperationGrid grid = grid_of_law();
  for (const planner::OperationSize& size :
       {planner::OperationSize{17, 33, 9}, planner::OperationSize{500, 200, 1999},
        planner::OperationSize{1024, 400, 50}}) {
    EXPECT_NEAR(grid.seconds_at(size) / law(size), 1, 1e-12);
  }
}

TEST(OperationGrid, KeepsTheEdgesTimeBelowAndItsRateAbove) {
  const planner::OperationGrid grid = grid_of_law();
  EXPECT_NEAR(grid.seconds_at({1, 32, 8}) / law({16, 32, 8}), 1, 1e-12);
  EXPECT_NEAR(grid.seconds_at({10240, 512, 2000}) / (10 * law({1024, 512, 2000})), 1, 1e-12);
  const planner::OperationGrid point{
      planner::TimedOperation::kCopy, DType::kU8, {{{4096}, {1}, {1}}}, {2e-6}};
  EXPECT_NEAR(point.seconds_at({1, 1, 1}) / 2e-6, 1, 1e-12);
  EXPECT_NEAR(point.seconds_at({8192, 1, 1}) / 4e-6, 1, 1e-12);
}

TEST(TimedOperation, EveryNameIsItsOwn) {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < planner::kTimedOperationCount; ++i) {
    const auto operation = static_cast<planner::TimedOperation>(i);
    names.insert(planner::timed_operation_name(operation));
    EXPECT_EQ(planner::timed_operation_named(planner::timed_operation_name(operation)), operation);
  }
  EXPECT_EQ(names.size(), planner::kTimedOperationCount);
  EXPECT_EQ(planner::timed_operation_named("gemm"), std::nullopt);
}

}  // namespace
}  // namespace sluice::testing
