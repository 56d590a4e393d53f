#include "engine/planner/operation_times.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace sluice::testing {
namespace {

// Seconds of a product that keeps no machine's rate: exponents below 1, as with fixed overheads.
double law(const OperationSize& size) {
  return 1e-9 * std::pow(static_cast<double>(size[0]), 0.9) *
         std::pow(static_cast<double>(size[1]), 0.8) * std::pow(static_cast<double>(size[2]), 0.95);
}

OperationGrid grid_of_law() {
  OperationGrid grid{
      TimedOperation::kGemmNN, DType::kF32, {{{16, 64, 1024}, {32, 512}, {8, 100, 2000}}}, {}};
  for (const std::int64_t m : grid.axes[0]) {
    for (const std::int64_t n : grid.axes[1]) {
      for (const std::int64_t k : grid.axes[2]) grid.seconds.push_back(law({m, n, k}));
    }
  }
  return grid;
}

TEST(OperationGrid, IsExactAtItsPoints) {
  const OperationGrid grid = grid_of_law();
  for (const std::int64_t m : grid.axes[0]) {
    for (const std::int64_t n : grid.axes[1]) {
      for (const std::int64_t k : grid.axes[2]) {
        EXPECT_NEAR(grid.seconds_at({m, n, k}) / law({m, n, k}), 1, 1e-12);
      }
    }
  }
}

TEST(OperationGrid, FollowsAPowerLawBetweenThem) {
  const OperationGrid grid = grid_of_law();
  for (const OperationSize& size :
       {OperationSize{17, 33, 9}, OperationSize{500, 200, 1999}, OperationSize{1024, 400, 50}}) {
    EXPECT_NEAR(grid.seconds_at(size) / law(size), 1, 1e-12);
  }
}

TEST(OperationGrid, KeepsTheEdgesTimeBelowAndItsRateAbove) {
  const OperationGrid grid = grid_of_law();
  EXPECT_NEAR(grid.seconds_at({1, 32, 8}) / law({16, 32, 8}), 1, 1e-12);
  EXPECT_NEAR(grid.seconds_at({10240, 512, 2000}) / (10 * law({1024, 512, 2000})), 1, 1e-12);
  const OperationGrid point{TimedOperation::kCopy, DType::kU8, {{{4096}, {1}, {1}}}, {2e-6}};
  EXPECT_NEAR(point.seconds_at({1, 1, 1}) / 2e-6, 1, 1e-12);
  EXPECT_NEAR(point.seconds_at({8192, 1, 1}) / 4e-6, 1, 1e-12);
}

TEST(TimedOperation, EveryNameIsItsOwn) {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < kTimedOperationCount; ++i) {
    const auto operation = static_cast<TimedOperation>(i);
    names.insert(timed_operation_name(operation));
    EXPECT_EQ(timed_operation_named(timed_operation_name(operation)), operation);
  }
  EXPECT_EQ(names.size(), kTimedOperationCount);
  EXPECT_EQ(timed_operation_named("gemm"), std::nullopt);
}

}  // namespace
}  // namespace sluice::testing
