// All combinations of ranks, stages and options, each under several adverse timings. It takes
// minutes.
#include <gtest/gtest.h>

#include "tests/engine/schedule/world/world_matrix.hpp"

namespace sluice::testing {
namespace {

TEST(WorldSweep, AnyNumberOfRanksAndAnyStageMakesOneRanksTerms) {
  int combinations = 0;
  for (std::size_t i = 0; i < kWorldCases; ++i) {
    if (expect_one_ranks_terms(world_case(i), 3) == 3) ++combinations;
    if (HasFailure()) return;
  }
  EXPECT_GE(combinations, 1000);
}

}  // namespace
}  // namespace sluice::testing
