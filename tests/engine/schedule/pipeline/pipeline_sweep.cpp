// Many combinations of orders, ranks, stages and options, each under two adverse timings. It takes
// minutes.
#include <gtest/gtest.h>

#include "tests/engine/schedule/pipeline/pipeline_matrix.hpp"

namespace sluice::testing {
namespace {

TEST(PipelineSweep, AnyOrderOnAnyNumberOfRanksMakesOneRanksTerms) {
  constexpr std::size_t kStride = 67;  // coprime to every digit of the combinations
  int combinations = 0;
  for (std::size_t i = 0; i < kPipelineCases; i += kStride) {
    if (expect_one_ranks_terms(pipeline_case(i), 2) > 0) ++combinations;
    if (HasFailure()) return;
  }
  EXPECT_GE(combinations, 500);
}

}  // namespace
}  // namespace sluice::testing
