// Shards cover a unit, break at blocks of 4,096 elements, and are as even as blocks allow.
#include "engine/parallel/partition.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/units.hpp"
#include "tests/support/step_examples.hpp"

namespace sluice::parallel {
namespace {

using schedule::ElemRange;

TEST(Partition, CoversAUnitWithShardsThatDifferByOneBlock) {
  for (const std::uint64_t blocks : {1, 2, 5, 7, 64, 1000}) {
    for (const std::int32_t ranks : {1, 2, 3, 4, 8, 11}) {
      const std::vector<ElemRange> shards = partition_blocks(blocks * kLawBlockElems, ranks);
      ASSERT_EQ(shards.size(), static_cast<std::size_t>(ranks));
      std::uint64_t reached = 0;
      for (const ElemRange& shard : shards) {
        EXPECT_EQ(shard.begin, reached);
        EXPECT_EQ(shard.end % kLawBlockElems, 0u);
        const std::uint64_t least = blocks / static_cast<std::uint64_t>(ranks);
        EXPECT_GE(shard.elems(), least * kLawBlockElems);
        EXPECT_LE(shard.elems(), (least + 1) * kLawBlockElems);
        reached = shard.end;
      }
      EXPECT_EQ(reached, blocks * kLawBlockElems);
    }
  }
}

TEST(Partition, KeepsTheTiedUseWithItsTensor) {
  const schedule::StepModel model = testing::example_model(1, true, DType::kBF16);
  for (const std::int32_t ranks : {2, 3, 8}) {
    const schedule::RankView view = make_rank_view(model, 0, ranks, 3);
    ASSERT_EQ(view.shards.size(), model.units.size() + 1);
    for (std::size_t rank = 0; rank < view.shards[0].size(); ++rank) {
      const ElemRange& unit = view.shards.front()[rank];
      const ElemRange& tied = view.shards.back()[rank];
      EXPECT_EQ(tied.begin, std::min(unit.begin, model.tied_elems));
      EXPECT_EQ(tied.end, std::min(unit.end, model.tied_elems));
    }
  }
}

// A rule that needs whole tensors finds each unit on one rank, and ranks hold about the same.
TEST(Partition, GivesWholeUnitsToRulesThatNeedWholeTensors) {
  kernels::OptimizerOptions muon;
  muon.rule = kernels::OptimizerRule::kMuon;
  const schedule::StepModel model = testing::example_model(6, false, DType::kBF16, muon);
  const schedule::RankView view = make_rank_view(model, 1, 3, 2);
  std::vector<std::uint64_t> held(3);
  for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
    int owners = 0;
    for (std::size_t rank = 0; rank < 3; ++rank) {
      const ElemRange& shard = view.shards[unit][rank];
      held[rank] += shard.elems();
      if (shard.elems() == 0) continue;
      EXPECT_EQ(shard, (ElemRange{0, model.units[unit].elems}));
      ++owners;
    }
    EXPECT_EQ(owners, 1);
  }
  const auto [least, most] = std::minmax_element(held.begin(), held.end());
  EXPECT_LE(*most - *least, model.units[1].elems);
}

}  // namespace
}  // namespace sluice::parallel
