// Steps of several data-parallel ranks: the terms of one rank's step, the bytes that each sends, and
// the faults that validate names.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/schedule/check/interpret.hpp"
#include "engine/schedule/check/validate.hpp"
#include "tests/engine/schedule/world/world_matrix.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/sweep.hpp"

namespace sluice::schedule {
namespace {

using namespace testing;

// A sample of the combinations; world_sweep.cpp runs all of them.
TEST(World, AnyNumberOfRanksAndAnyStageMakesOneRanksTerms) {
  constexpr std::size_t kStride = 23;  // coprime to every digit of the combinations
  int tried = 0;
  for (std::size_t i = 0; i < sweep(64); ++i) {
    tried += expect_one_ranks_terms(world_case(i * kStride % kWorldCases), 1);
    if (HasFailure()) return;
  }
  EXPECT_GE(tried, static_cast<int>(sweep(64)));
}

}  // namespace
}  // namespace sluice::schedule
