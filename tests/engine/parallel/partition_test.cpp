// Shards cover a unit, break at norm blocks of 4,096 elements, and are as even as blocks allow.
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

schedule::StepModel model_of_tensors(int blocks) {
  kernels::OptimizerOptions muon;
  muon.rule = kernels::OptimizerRule::kMuon;
  return testing::example_model(blocks, false, DType::kBF16, muon);
}

// A rule that needs whole tensors finds each tensor on one rank with all of its sums.
TEST(Partition, GivesWholeTensorsToRulesThatNeedThem) {
  const schedule::StepModel model = model_of_tensors(6);
  for (const std::int32_t ranks : {2, 3, 4, 8}) {
    const schedule::RankView view = make_rank_view(model, 1, ranks, 2);
    for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
      const std::vector<schedule::TensorBorder>& borders = model.units[unit].tensor_borders;
      ElemRange reached;
      ElemRange sums_reached;
      for (std::size_t rank = 0; rank < static_cast<std::size_t>(ranks); ++rank) {
        const ElemRange& shard = view.shards[unit][rank];
        const ElemRange& sums = view.sums[unit][rank];
        EXPECT_EQ(shard.begin, reached.end);
        EXPECT_EQ(sums.begin, sums_reached.end);
        for (const auto& [elem, sum] :
             {std::pair(shard.begin, sums.begin), {shard.end, sums.end}}) {
          EXPECT_NE(std::find(borders.begin(), borders.end(), schedule::TensorBorder{elem, sum}),
                    borders.end());
        }
        reached = shard;
        sums_reached = sums;
      }
      EXPECT_EQ(reached.end, model.units[unit].elems);
      EXPECT_EQ(sums_reached.end, model.units[unit].tensor_state_elems);
    }
  }
}

// Ranks end with about the same number of elements, though no single unit divides evenly.
TEST(Partition, MakesUpForUnevenTensorsInOtherUnits) {
  const schedule::StepModel model = model_of_tensors(40);
  for (const std::int32_t ranks : {2, 3, 4, 8}) {
    const schedule::RankView view = make_rank_view(model, 0, ranks, 3);
    std::vector<std::uint64_t> held(static_cast<std::size_t>(ranks));
    for (const std::vector<ElemRange>& shards : view.shards) {
      for (std::size_t rank = 0; rank < shards.size(); ++rank) held[rank] += shards[rank].elems();
    }
    const auto [least, most] = std::minmax_element(held.begin(), held.end());
    EXPECT_LE(*most - *least, 4 * kLawBlockElems) << ranks;  // the largest tensor
  }
}

}  // namespace
}  // namespace sluice::parallel
