// The lists of delayed updates: validate accepts them, they compute the same terms under all
// timings, and no damaged one that is accepted computes others.
#include <gtest/gtest.h>

#include "engine/schedule/check/validate.hpp"
#include "tests/engine/schedule/pipeline/pipeline_matrix.hpp"
#include "tests/support/mutation_campaign.hpp"

namespace sluice::testing {
namespace {

using schedule::DelayRule;

struct DelayedRun {
  DelayRule rule = DelayRule::kStashing;
  std::int32_t ranks = 2;
  Tier weights = Tier::kDevice, others = Tier::kDevice;
  std::int32_t data_ranks = 1;
  std::int32_t zero_stage = 0;
};

schedule::Schedule delayed_world(const DelayedRun& at) {
  const std::int32_t each = at.rule == DelayRule::kDoubleBuffered ? at.ranks : 1;
  const schedule::StepModel model = example_model(3, false, DType::kBF16);
  PipelineMesh mesh;
  mesh.order = schedule::make_delayed_order(at.rule, at.ranks, each, 5);
  mesh.units = drawn_stages(model.units.size(), at.ranks, 7);
  mesh.data_ranks = at.data_ranks;
  mesh.zero_stage = at.zero_stage;
  schedule::StepOptions options = resident_options(model, each * at.data_ranks);
  options.placement = placed(model.units.size(), at.weights, at.others, at.others);
  options.update = schedule::UpdatePlacement::kInBackward;
  return pipeline_world(model, options, schedule::StepKind::kTraining, mesh);
}

std::vector<DelayedRun> delayed_runs() {
  std::vector<DelayedRun> runs;
  for (const DelayRule rule :
       {DelayRule::kStashing, DelayRule::kVerticalSync, DelayRule::kDoubleBuffered}) {
    for (const std::int32_t ranks : {2, 3}) {
      for (const Tier tier : kTiers) {
        runs.push_back({rule, ranks, tier, tier});
        runs.push_back({rule, ranks, tier, Tier::kPinned});
      }
    }
    for (const std::int32_t stage : {0, 1, 2, 3}) {
      runs.push_back({rule, 2, Tier::kDevice, Tier::kDevice, 2, stage});
    }
  }
  return runs;
}

TEST(DelayedUpdates, ComputeTheSameTermsUnderAllTimings) {
  std::map<DelayRule, schedule::Interpretation> of_rule;
  for (const DelayedRun& at : delayed_runs()) {
    SCOPED_TRACE(::testing::Message()
                 << static_cast<int>(at.rule) << ", ranks " << at.ranks << ", weights "
                 << static_cast<int>(at.weights) << ", others " << static_cast<int>(at.others)
                 << ", data " << at.data_ranks << ", stage " << at.zero_stage);
    const schedule::Schedule world = delayed_world(at);
    ASSERT_EQ(joined(schedule::validate(world)), "");
    const schedule::Interpretation values = schedule::interpret(world);
    ASSERT_EQ(joined(values.errors), "");
    EXPECT_EQ(values.losses.size(),
              static_cast<std::size_t>(world.delayed.updates * world.delayed.microbatches));
    EXPECT_TRUE(harmless(world, values, 3, 1));
    if (at.ranks != 3) continue;
    // The tiers make no difference.
    const auto [first, fresh] = of_rule.try_emplace(at.rule, values);
    EXPECT_TRUE(fresh || values.same_values(first->second));
  }
}

TEST(DelayedUpdates, APassMayNotReadAnotherVersionThanIsDeclared) {
  schedule::Schedule world = delayed_world({.ranks = 3});
  for (auto& versions : world.delayed.versions) ++versions[3];
  EXPECT_NE(joined(schedule::validate(world)).find(" reads version "), std::string::npos);
}

// The formula of docs/design/pipelines.md.
TEST(DelayedUpdates, SendAsManyActivationsAs1F1B) {
  const schedule::StepModel model = example_model(3, false, DType::kBF16);
  const auto stages = drawn_stages(model.units.size(), 3, 7);
  std::uint64_t between = 0;
  for (std::size_t stage = 0; stage + 1 < stages.size(); ++stage) {
    between += model.units[static_cast<std::size_t>(stages[stage].end) - 1].output_bytes;
  }
  for (const DelayRule rule :
       {DelayRule::kStashing, DelayRule::kVerticalSync, DelayRule::kDoubleBuffered}) {
    const schedule::Schedule world = delayed_world({.rule = rule, .ranks = 3});
    const auto microbatches =
        static_cast<std::uint64_t>(world.delayed.updates * world.delayed.microbatches);
    std::uint64_t sent = 0;
    for (const schedule::Instruction& instruction : world.instructions) {
      if (instruction.lane == schedule::Lane::kSend) sent += instruction.bytes;
    }
    EXPECT_EQ(sent, 2 * microbatches * between);
  }
}

TEST(DelayedUpdates, NoMutationThatIsAcceptedComputesOtherTerms) {
  MutationCampaign campaign;
  std::uint64_t seed = 0;
  for (const DelayedRun& at : delayed_runs()) {
    if (++seed % 3 != 0) continue;
    campaign.attack(delayed_world(at), seed, 2);
    if (HasFatalFailure()) return;
  }
  campaign.print();
  EXPECT_GE(campaign.made(), static_cast<int>(sweep(200)));
}

}  // namespace
}  // namespace sluice::testing
