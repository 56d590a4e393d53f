// Ranks on GPUs whose messages pass through pinned memory.
#include "tests/engine/train/cuda/emulated_ranks.hpp"

namespace sluice::train {
namespace {

using namespace testing;

using StagedRanks = EmulatedRanks;

TEST_F(StagedRanks, GiveOneRanksBits) {
  expect_one_ranks_bits(ranks(2, 0), device_, gpus());
  expect_one_ranks_bits(ranks(2, 1), device_ + Overrides{"train.fold_groups=4"}, gpus());
  expect_one_ranks_bits(ranks(4, 3), pinned_ + Overrides{"optimizer.placement=next_forward"},
                        gpus());
  expect_one_ranks_bits(ranks(2, 3), stored_ + Overrides{"recompute.policy=unit"}, gpus());
}

// Half a unit is more than one piece of staging memory, 1 MiB.
TEST_F(StagedRanks, SendLargePartsInPieces) {
  expect_one_ranks_bits(ranks(2, 3),
                        device_ + Overrides{"model.vocab=17000", "train.seq=2",
                                            "train.accumulate=2", "train.precision=fp32"},
                        gpus());
}

}  // namespace
}  // namespace sluice::train
