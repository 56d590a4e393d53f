// Damaged schedules: one that validate accepts must compute the same terms in every timing tried.
#include <gtest/gtest.h>

#include "tests/support/mutation_campaign.hpp"
#include "tests/support/pipeline_example.hpp"
#include "tests/support/step_examples.hpp"
#include "tests/support/sweep.hpp"

namespace sluice::schedule {
namespace {

using testing::Mutation;
using testing::MutationCampaign;

// Steps with each placement of updates, and steps that save the state that they find while they
// change it.
void attack_updates(MutationCampaign& campaign) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const bool tied = seed % 2 == 1;
    const DType dtype = seed % 3 == 0 ? DType::kF32 : DType::kBF16;
    const auto optimizers = testing::example_optimizers();
    const StepModel model =
        testing::example_model(1, tied, dtype, optimizers[seed % optimizers.size()]);
    const auto microbatches = static_cast<std::int32_t>(1 + seed % 3);
    StepOptions options = testing::random_options(model, microbatches, seed);
    campaign.attack(compile(model, options, StepKind::kTraining), seed, 12);
    options.update = UpdatePlacement::kNextForward;
    campaign.attack(compile(model, options, StepKind::kTraining), seed + 1000, 6);
    campaign.attack(compile(model, options, StepKind::kFirst), seed + 2000, 2);
    campaign.attack(compile(model, options, StepKind::kDrain), seed + 3000, 2);
    options.update = UpdatePlacement::kInBackward;
    campaign.attack(compile(model, options, StepKind::kTraining), seed + 4000, 3);
    options.update = UpdatePlacement::kSpeculative;
    campaign.attack(compile(model, options, StepKind::kTraining), seed + 5000, 6);
    campaign.attack(compile(model, options, StepKind::kRedo), seed + 6000, 3);
    options.carried_units = static_cast<std::int32_t>(1 + seed % 2);
    campaign.attack(compile(model, options, StepKind::kTraining), seed + 7000, 6);
    campaign.attack(compile(model, options, StepKind::kRedo), seed + 8000, 2);
    campaign.attack(compile(model, options, StepKind::kDrain), seed + 9000, 2);
    if (::testing::Test::HasFatalFailure()) return;
  }
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const auto optimizers = testing::example_optimizers();
    const StepModel model =
        testing::example_model(1, seed % 2 == 1, DType::kBF16, optimizers[seed]);
    StepOptions options = testing::random_options(model, 1 + static_cast<int>(seed % 2), seed + 50);
    options.durable = true;
    campaign.attack(compile(model, options, StepKind::kSaving), 200 + seed, 12);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

// Steps that spill activations, or make some of them again.
void attack_activations(MutationCampaign& campaign) {
  // Whole activations, some in several pieces.
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    StepModel model = testing::example_model(3, seed % 2 == 1, DType::kBF16);
    for (UnitFootprint& unit : model.units) {
      if (unit.saved_bytes > 0) unit.saved_bytes = 40000;
    }
    StepOptions options = testing::random_options(model, 1 + static_cast<int>(seed % 3), seed);
    options.piece_elems = 4096;
    options.prefetch = static_cast<std::int32_t>(seed / 2 % 2);
    options.placement.activation.assign(model.units.size(),
                                        seed % 4 == 0 ? Tier::kPinned : Tier::kStorage);
    campaign.attack(compile(model, options, StepKind::kTraining), 300 + seed, 12);
    if (::testing::Test::HasFatalFailure()) return;
  }
  // Parts of the units' saved activations, each to a place of its own.
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    StepModel model = testing::example_model(3, seed % 2 == 1, DType::kBF16);
    testing::cut_saved(model);
    StepOptions options = testing::random_options(model, 1 + static_cast<int>(seed % 3), seed);
    options.recompute = {};
    options.piece_elems = 4096;
    options.prefetch = static_cast<std::int32_t>(seed / 2 % 2);
    testing::scatter_saved(model, seed, options.placement);
    campaign.attack(compile(model, options, StepKind::kTraining), 400 + seed, 12);
    if (::testing::Test::HasFatalFailure()) return;
  }
  // Some parts are recomputed, and some units whole.
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    StepModel model = testing::example_model(3, seed % 2 == 1, DType::kBF16);
    testing::cut_saved(model);
    StepOptions options = testing::random_options(model, 1 + static_cast<int>(seed % 3), seed);
    options.recompute = testing::random_recompute(model, seed);
    options.piece_elems = 4096;
    if (seed % 2 == 0) testing::scatter_saved(model, seed, options.placement);
    campaign.attack(compile(model, options, StepKind::kTraining), 500 + seed, 12);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(Mutations, NoneThatIsAcceptedComputesOtherTermsOrReadsFreedMemory) {
  MutationCampaign campaign;
  attack_updates(campaign);
  attack_activations(campaign);
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    campaign.attack(testing::two_stage_pipeline(2 + static_cast<int>(seed)), 100 + seed, 10);
    if (::testing::Test::HasFatalFailure()) return;
  }
  campaign.print();
  EXPECT_GE(campaign.made(), static_cast<int>(testing::sweep(1500)));
  // The campaign itself must bite: these kinds of damage are never benign.
  for (const Mutation deadly : {Mutation::kDropFetch, Mutation::kDropRelease,
                                Mutation::kUnmatchedMessage, Mutation::kDropDep}) {
    EXPECT_GT(campaign.tally(deadly).refused, 0);
    EXPECT_EQ(campaign.tally(deadly).benign, 0)
        << testing::kMutationNames[static_cast<std::size_t>(deadly)];
  }
}

}  // namespace
}  // namespace sluice::schedule
