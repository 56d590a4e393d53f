// Law 1 over pipelines: any order of passes, any cut and any number of pipeline and data-parallel ranks
// gives the losses, norms and weights of one rank, to the bit.
#include "tests/support/pipeline_training.hpp"
#include "tests/support/sweep.hpp"

namespace sluice::train {
namespace {

using namespace testing;

// Neighbours differ in most settings.
PipelineCase pipeline_case(std::size_t i) {
  PipelineCase at;
  const auto pick = [&](std::size_t stride, std::initializer_list<const char*> values) {
    at.settings.push_back(values.begin()[i / stride % values.size()]);
  };
  constexpr std::array kOrders{"1f1b",  "gpipe", "interleaved", "zb-h1",
                               "zb-h2", "zb-v",  "vertical"};
  at.order = kOrders[i % kOrders.size()];
  const bool several = at.order == "interleaved" || at.order == "vertical" || at.order == "zb-v";
  at.virtual_stages = several ? 2 : 1;
  at.pipeline = std::array{2, 3, 4}[i / 2 % 3];
  at.data = i / 3 % 2 == 0 ? 1 : 2;
  at.zero = at.data == 1 ? 0 : static_cast<int>(i / 6 % 4);
  at.microbatches = at.pipeline + static_cast<int>(i * 5 % (2 * at.pipeline + 2));
  at.cut_seed = i + 1;
  pick(4, {"optimizer.placement=after_backward", "optimizer.placement=next_forward",
           "optimizer.placement=speculative"});
  pick(5, {"recompute.policy=none", "recompute.policy=unit", "recompute.policy=selective",
           "recompute.policy=every:2"});
  pick(3, {"train.precision=bf16", "train.precision=fp32", "train.precision=fp16"});
  pick(7, {"optimizer.name=adamw", "optimizer.name=lion", "optimizer.name=muon",
           "optimizer.name=adafactor"});
  pick(6, {"model.family=gpt2", "model.family=llama"});
  pick(11, {"train.clip=1.0", "train.clip=0"});
  at.settings = at.settings + places_in_turn(i);
  return at;
}

TEST(Pipelines, TwoRanksAndOneForwardOneBackward) {
  expect_one_ranks_bits({.settings = {"model.family=llama"}});
}

// Files that torch wrote and one of torchtitan's, with the whole model on up to eight stages.
TEST(Pipelines, OrdersOfTorchGiveOneRanksBits) {
  struct Known {
    const char* file;
    int ranks, stages, microbatches;
  };
  for (const Known& known :
       {Known{"torch_zb1p_2_ranks.csv", 2, 2, 8}, Known{"torch_dualpipev_4_ranks.csv", 4, 2, 10},
        Known{"torchtitan_4_ranks.csv", 4, 2, 6},
        Known{"written_gpipe_4_ranks_1_stages.csv", 4, 1, 6},
        Known{"written_interleaved1f1b_4_ranks_1_stages.csv", 4, 1, 6},
        Known{"written_interleaved1f1b_4_ranks_2_stages.csv", 4, 2, 8},
        Known{"written_interleavedzerobubble_4_ranks_2_stages.csv", 4, 2, 8},
        Known{"written_zbvzerobubble_4_ranks_2_stages.csv", 4, 2, 8},
        Known{"written_dualpipev_4_ranks_2_stages.csv", 4, 2, 8}}) {
    PipelineCase at;
    at.order = std::string("csv:") + SLUICE_TEST_DATA + "/" + known.file;
    at.pipeline = known.ranks;
    at.virtual_stages = known.stages;
    at.microbatches = known.microbatches;
    at.settings = {"optimizer.placement=next_forward", "memory.place.optimizer=storage"};
    expect_one_ranks_bits(at);
  }
}

// Sums of groups wait on lower tiers inside stages, too.
TEST(Pipelines, PartialSumsMayLieOnLowerTiers) {
  for (const Tier tier : {Tier::kPinned, Tier::kStorage}) {
    PipelineCase at;
    at.data = at.zero = 2;
    at.microbatches = at.fold_groups = 4;
    at.partial = tier;
    at.settings = places("storage", "pinned", "storage");
    expect_one_ranks_bits(at);
  }
}

TEST(Pipelines, GiveOneRanksBits) {
  for (std::size_t i = 0; i < sweep(36); ++i) {
    expect_one_ranks_bits(pipeline_case(i));
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace sluice::train
