#include "engine/planner/trial/budget_step.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace sluice::testing {
namespace {

std::string suggested(std::uint64_t bytes) {
  return format_bytes_exact(planner::suggested_budget(bytes));
}

TEST(BudgetStep, ASuggestionIsReadInAFewDigits) {
  EXPECT_EQ(suggested(461984 * kMiB), "452GiB");
  EXPECT_EQ(suggested(64 * kGiB), "64GiB");
  EXPECT_EQ(suggested(64 * kGiB + 1), "65GiB");
  EXPECT_EQ(suggested(20 * kMiB + 1), "22MiB");
  EXPECT_EQ(suggested(1), "2MiB");
  EXPECT_EQ(suggested(3 * kGiB), "3GiB");
}

TEST(BudgetStep, ASuggestionIsEnough) {
  for (std::uint64_t bytes = 1; bytes < std::uint64_t{1} << 50; bytes = bytes * 3 + 1) {
    EXPECT_GE(planner::suggested_budget(bytes), bytes);
    EXPECT_LE(planner::suggested_budget(bytes), bytes + std::max(kPageBytes, bytes / 60));
  }
}

}  // namespace
}  // namespace sluice::testing
