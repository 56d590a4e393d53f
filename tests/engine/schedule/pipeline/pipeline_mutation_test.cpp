// Damaged lists of pipelines, and lists compiled from damaged orders.
#include <gtest/gtest.h>

#include "engine/schedule/orders/check_order.hpp"
#include "tests/engine/schedule/pipeline/pipeline_matrix.hpp"
#include "tests/support/mutation_campaign.hpp"
#include "tests/support/sweep.hpp"

namespace sluice::testing {
namespace {

TEST(PipelineMutations, NoneThatIsAcceptedComputesOtherTerms) {
  MutationCampaign campaign;
  for (std::size_t i = 0; i < 14; ++i) {
    PipelineCase at = pipeline_case(i * 421 % kPipelineCases);
    at.ranks = 2 + static_cast<std::int32_t>(i % 2);
    at.microbatches = at.ranks;
    at.stages_each = 1;
    if (at.data_ranks > 1 && at.ranks > 2) at.data_ranks = 1;
    SCOPED_TRACE(at.name());
    const PipelineRun run = pipeline_run(at);
    campaign.attack(pipeline_world(run.model, run.options, schedule::StepKind::kTraining, run.mesh),
                    i, 4);
    if (HasFatalFailure()) return;
  }
  campaign.print();
  EXPECT_GE(campaign.made(), static_cast<int>(sweep(500)));
  EXPECT_GT(campaign.tally(Mutation::kUnmatchedMessage).refused, 0);
  EXPECT_EQ(campaign.tally(Mutation::kUnmatchedMessage).benign, 0);
}

// Two passes of a rank change places. An order that is accepted compiles to a step with one rank's
// terms, or with others if its sums are said to be in another order.
TEST(PipelineMutations, OfOrdersThatAreAcceptedComputeOneRanksTerms) {
  const CounterRng random(9, stream_of("test/pipeline_orders"));
  std::uint64_t draw = 0;
  int accepted = 0;
  int refused = 0;
  const schedule::StepModel model = example_model(6, true, DType::kBF16);
  const schedule::StepOptions options = resident_options(model, 4);
  const schedule::Interpretation plain =
      schedule::interpret(schedule::compile(model, options, schedule::StepKind::kTraining));
  for (std::size_t k = 0; k < schedule::kOrderKindCount; ++k) {
    for (std::size_t seed = 0; seed < sweep(60); ++seed) {
      schedule::PipelineOrder order =
          schedule::make_order(static_cast<schedule::OrderKind>(k), 3, 2, 4);
      auto& list = order.actions[random.below(draw++, order.actions.size())];
      const std::size_t at = random.below(draw++, list.size() - 1);
      const std::size_t to = std::min(at + 1 + random.below(draw++, 3), list.size() - 1);
      std::swap(list[at], list[to]);
      if (!check_order(order).empty() || !check_sum_order(order).empty()) {
        ++refused;
        continue;
      }
      ++accepted;
      const PipelineMesh mesh{order, drawn_stages(model.units.size(), order.stages(), seed)};
      const schedule::Schedule world =
          pipeline_world(model, options, schedule::StepKind::kTraining, mesh);
      ASSERT_EQ(joined(schedule::validate(world)), "")
          << order_name(static_cast<schedule::OrderKind>(k));
      schedule::InterpretOptions blocking;
      blocking.timing = schedule::Timing::kRandom;
      blocking.seed = seed;
      blocking.rendezvous = true;
      const schedule::Interpretation values = schedule::interpret(world, blocking);
      ASSERT_EQ(joined(values.errors), "");
      ASSERT_TRUE(values.same_values(plain));
    }
  }
  std::printf("%d orders accepted, %d refused\n", accepted, refused);
  EXPECT_GT(accepted, 0);
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace sluice::testing
