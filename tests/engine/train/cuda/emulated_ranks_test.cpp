// Ranks on GPUs whose messages, and values that cross cuts, pass through pinned memory.
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

const Overrides kGroups{"train.precision=fp32", "train.accumulate=2", "model.vocab=101"};

TEST_F(StagedRanks, TrainTensorGroups) {
  expect_groups_bits(kGroups + device_, {"parallel.tensor=2"},
                     ranks(2, 3) + Overrides{"recompute.policy=unit"} + pinned_);
  expect_groups_bits(
      kGroups + device_ + Overrides{"model.family=llama", "model.heads=4", "model.kv_heads=2"},
      {"parallel.tensor=4", "parallel.sequence=true"}, stored_);
}

TEST_F(StagedRanks, TrainContextGroups) {
  expect_groups_bits(kGroups + device_, {"parallel.context=2"}, ranks(2, 3) + pinned_);
  expect_groups_bits(kGroups + device_ + Overrides{"model.heads=4"},
                     {"parallel.context=2", "parallel.tensor=2", "parallel.sequence=true"},
                     {"recompute.policy=unit"});
}

// A gradient's sum has more than one piece of staging memory, 1 MiB, in each part.
TEST_F(StagedRanks, SumLargeValuesInPieces) {
  expect_groups_bits(device_ + Overrides{"model.vocab=17001", "train.seq=2", "train.accumulate=1",
                                         "train.precision=fp32"},
                     {"parallel.context=2"}, {});
}

}  // namespace
}  // namespace sluice::train
