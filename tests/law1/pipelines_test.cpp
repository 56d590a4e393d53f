// Law 1 over pipelines: any order of passes, any cut and any number of pipeline and data-parallel ranks
// gives the losses, norms and weights of one rank, to the bit. Ranks are threads here; the bytes that
// they exchange are real.
#include <gtest/gtest.h>

#include <array>

#include "tests/support/pipeline_world.hpp"
#include "tests/support/rank_sessions.hpp"
#include "tests/support/sweep.hpp"
#include "tests/support/training_example.hpp"

namespace sluice::train {
namespace {

using namespace testing;

constexpr std::int64_t kSteps = 3;
constexpr std::int64_t kLayers = 6;
constexpr std::size_t kUnits = kLayers + 2;

struct PipelineCase {
  int pipeline = 2;
  int data = 1;
  int zero = 0;
  int virtual_stages = 1;
  int microbatches = 2;  // of each pipeline
  int fold_groups = 1;
  std::string order = "1f1b";
  std::uint64_t cut_seed = 1;
  Overrides settings;
};

Overrides small_model() {
  return {"model.layers=" + std::to_string(kLayers),
          "model.hidden=64",
          "model.heads=4",
          "train.seq=16",
          "train.micro_batch=2",
          "train.steps=3",
          "model.vocab=256"};
}

config::Config config_of(const TrainingBench& bench, const PipelineCase& at, bool alone) {
  Overrides settings =
      small_model() + at.settings +
      Overrides{"train.accumulate=" + std::to_string(at.microbatches * at.data),
                "train.fold_groups=" + std::to_string(at.fold_groups), "train.order=microbatch"};
  if (alone) return bench.config("run", settings);
  return bench.config("run", settings + Overrides{"parallel.data=" + std::to_string(at.data),
                                                  "parallel.zero=" + std::to_string(at.zero),
                                                  "parallel.pipeline=" + std::to_string(at.pipeline),
                                                  "parallel.schedule=" + at.order,
                                                  "parallel.virtual_stages=" +
                                                      std::to_string(at.virtual_stages)});
}

void expect_one_ranks_bits(const PipelineCase& at) {
  SCOPED_TRACE(at.order + ", " + std::to_string(at.pipeline) + " x " +
               std::to_string(at.virtual_stages) + " stages, " + std::to_string(at.data) +
               " data ranks, ZeRO " + std::to_string(at.zero) + ", " +
               std::to_string(at.microbatches) + " micro-batches, groups " +
               std::to_string(at.fold_groups) + ", " + ::testing::PrintToString(at.settings));
  const TrainingBench bench;
  const config::Config alone = config_of(bench, at, true);
  PlannedSession planned(alone);
  const RanksRecord expected = train_session(planned.session(), alone, kSteps);
  schedule::StepOptions options = planned.plan().options;
  options.stages = drawn_stages(kUnits, at.pipeline * at.virtual_stages, at.cut_seed);
  cut_segments(options.recompute, options.stages);
  const RanksRun run = train_on_ranks(config_of(bench, at, false), options, kSteps);
  for (const RanksRecord& rank : run.ranks) EXPECT_EQ(rank, expected);
  EXPECT_EQ(run.sent_bytes, run.planned_bytes);
}

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
  switch (i % 5) {
    case 0:
      return at.settings = at.settings + places("device", "device", "device"), at;
    case 1:
      return at.settings = at.settings + places("pinned", "pinned", "storage"), at;
    case 2:
      return at.settings = at.settings + places("storage", "storage", "storage"), at;
    default:
      return at.settings = at.settings + places("pinned", "pinned", "pinned"), at;
  }
}

TEST(Pipelines, TwoRanksAndOneForwardOneBackward) {
  expect_one_ranks_bits({.settings = {"model.family=llama"}});
}

TEST(Pipelines, GiveOneRanksBits) {
  for (std::size_t i = 0; i < sweep(36); ++i) {
    expect_one_ranks_bits(pipeline_case(i));
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace sluice::train
