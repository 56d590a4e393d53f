// All combinations of ranks, stages and options, each under an adverse timing; every eighth under
// four. It takes minutes.
#include <gtest/gtest.h>

#include "tests/engine/schedule/world/world_matrix.hpp"

namespace sluice::testing {
namespace {

TEST(WorldSweep, AnyNumberOfRanksAndAnyStageMakesOneRanksTerms) {
  int combinations = 0;
  for (std::size_t i = 0; i < kWorldCases; ++i) {
    if (expect_one_ranks_terms(world_case(i), i % 8 == 0 ? 4 : 1) > 0) ++combinations;
    if (HasFailure()) return;
  }
  EXPECT_EQ(combinations, static_cast<int>(kWorldCases));
}

}  // namespace
}  // namespace sluice::testing
