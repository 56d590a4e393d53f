// Ranks on GPUs whose messages, and values that cross cuts, pass through pinned memory.
#include "tests/engine/train/cuda/emulated_ranks.hpp"

#include <utility>

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

// To search for a plan takes as long as the steps.
const Overrides kKept{"recompute.policy=none", "memory.place.activation=device"};
const Overrides kGroups =
    kKept + Overrides{"train.precision=fp32", "train.accumulate=2", "model.vocab=101"};

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

// Two and four ranks, the latter with fewer key/value heads; and tensor groups.
TEST_F(StagedRanks, TrainRings) {
  const Overrides ring =
      kGroups + device_ + Overrides{"parallel.context_attention=ring", "train.seq=16"};
  const Overrides llama{"model.family=llama", "model.heads=4", "model.kv_heads=2"};
  expect_groups_bits(ring, {"parallel.context=2"}, ranks(2, 3) + pinned_);
  expect_groups_bits(ring + llama, {"parallel.context=4"},
                     stored_ + Overrides{"recompute.policy=unit"});
  expect_groups_bits(ring + llama,
                     {"parallel.context=2", "parallel.tensor=2", "parallel.sequence=true"},
                     {"recompute.policy=unit"});
}

// Ranks without GPUs have near losses and norms, also in 16 bits.
TEST_F(StagedRanks, LearnInRingsAsTheHostDoes) {
  const Overrides ring = device_ + kKept +
                         Overrides{"parallel.context_attention=ring", "train.seq=16",
                                   "train.accumulate=2", "parallel.context=4"};
  for (const auto& [precision, tolerance] :
       {std::pair("train.precision=fp32", 1e-4), std::pair("train.precision=bf16", 2e-2)}) {
    const Overrides how = ring + Overrides{precision};
    const RanksRecord got = train_group(how);
    const RanksRecord want = train_group_on_host(how);
    for (std::size_t i = 0; i < want.losses.size(); ++i) {
      expect_near(got.losses[i], want.losses[i], tolerance);
      expect_near(got.norms[i], want.norms[i], tolerance);
    }
  }
}

// A gradient's sum has more than one piece of staging memory, 1 MiB, in each part.
TEST_F(StagedRanks, SumLargeValuesInPieces) {
  expect_groups_bits(device_ + kKept +
                         Overrides{"model.vocab=17001", "train.seq=2", "train.accumulate=1",
                                   "train.precision=fp32"},
                     {"parallel.context=2"}, {});
}

}  // namespace
}  // namespace sluice::train
