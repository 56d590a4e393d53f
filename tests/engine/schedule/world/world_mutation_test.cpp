// Damaged lists of several ranks: a collective dropped, swapped or retargeted, a shard off by a
// block, an early release, a reduction left out, and all that may go wrong on one rank.
#include <gtest/gtest.h>

#include "tests/engine/schedule/world/world_matrix.hpp"
#include "tests/support/mutation_campaign.hpp"
#include "tests/support/sweep.hpp"

namespace sluice::testing {
namespace {

TEST(WorldMutations, NoneThatIsAcceptedComputesOtherTerms) {
  MutationCampaign campaign;
  const std::vector<Mutation> of_ranks{Mutation::kDropCollective,    Mutation::kSwapCollectives,
                                       Mutation::kRetargetPart,      Mutation::kShiftPart,
                                       Mutation::kLeaveOutReduction, Mutation::kEarlyRelease};
  for (std::size_t i = 0; i < 24; ++i) {
    WorldCase at = world_case(i * 421 % kWorldCases);
    if (at.ranks == 8) at.ranks = 2;
    at.fold_groups = i % 2 == 0 ? 1 : at.ranks * at.rounds;
    SCOPED_TRACE(at.name());
    const kernels::OptimizerOptions optimizer =
        example_optimizers()[i % example_optimizers().size()];
    const schedule::StepModel model = example_model(1, i % 3 == 0, DType::kBF16, optimizer);
    const schedule::StepOptions options = world_options(at, model);
    const schedule::Schedule world =
        world_of(model, options, schedule::StepKind::kTraining, at.ranks, at.zero_stage);
    campaign.attack(world, i, 4);
    campaign.attack(world, 1000 + i, 5, of_ranks);
    if (HasFatalFailure()) return;
  }
  campaign.print();
  int made = 0;
  for (const Mutation mutation : of_ranks) made += campaign.tally(mutation).made;
  EXPECT_GE(made, static_cast<int>(sweep(1000)));
  for (const Mutation deadly : {Mutation::kDropCollective, Mutation::kRetargetPart,
                                Mutation::kShiftPart, Mutation::kLeaveOutReduction}) {
    EXPECT_GT(campaign.tally(deadly).refused, 0);
    EXPECT_EQ(campaign.tally(deadly).benign, 0) << kMutationNames[static_cast<std::size_t>(deadly)];
  }
}

}  // namespace
}  // namespace sluice::testing
