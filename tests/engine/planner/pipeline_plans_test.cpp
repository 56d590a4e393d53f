// Plans of pipelines: every rank fits its budgets, the bubble is that of the order, and what cannot
// be is refused with a sentence.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>

#include "engine/planner/bound/pipeline_choice.hpp"
#include "engine/planner/choice/options_text.hpp"
#include "engine/planner/footprint.hpp"
#include "engine/planner/world_digest.hpp"
#include "engine/schedule/orders/message_order.hpp"
#include "engine/schedule/orders/order_csv.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/planned.hpp"
#include "tests/support/random_training.hpp"
#include "tests/support/thrown.hpp"

namespace sluice::planner {
namespace {

using namespace testing;

const TrainingBench& pipeline_bench() {
  static const TrainingBench bench;
  return bench;
}

config::Config pipeline_config(const Overrides& more) {
  return pipeline_bench().config(
      "run", Overrides{"model.family=gpt2", "model.layers=6", "model.hidden=64", "model.heads=4",
                       "model.vocab=512", "train.seq=32", "train.steps=2", "train.micro_batch=2",
                       "train.accumulate=8", "recompute.policy=none",
                       "optimizer.placement=after_backward", "parallel.pipeline=4"} +
                 more);
}

Plan pipeline_plan(const config::Config& config) {
  auto result = planned(config);
  if (const auto* refusal = std::get_if<Refusal>(&result)) throw InputError(refusal->sentence());
  return std::get<Plan>(std::move(result));
}

Plan rank_of_pipeline(const config::Config& config, const schedule::StepOptions& options,
                      std::int32_t rank) {
  static const std::unique_ptr<kernels::Kernels> kernels = kernels::make_host_kernels({1});
  return plan_rank(config, model::Model(config::model_shape(config)), *kernels, HardwareProfile{},
                   options, rank);
}

std::string refusal_of_plan(const Overrides& more) {
  return message_of<InputError>([&] { pipeline_plan(pipeline_config(more)); });
}

TEST(PipelinePlans, EachRankTakesWhatThePlanSays) {
  for (const Overrides& settings :
       {Overrides{}, Overrides{"parallel.schedule=zb-v", "parallel.pipeline=2"},
        Overrides{"parallel.schedule=interleaved", "parallel.pipeline=2", "parallel.data=2",
                  "parallel.zero=3", "memory.place.optimizer=storage"},
        Overrides{"parallel.data=2", "parallel.zero=1", "parallel.pipeline=3"},
        Overrides{"recompute.policy=unit", "model.layers=12", "memory.device=1GiB"},
        Overrides{"recompute.policy=every:2", "parallel.pipeline=3", "checkpoint.mode=durable",
                  "memory.place.weight=pinned"}}) {
    SCOPED_TRACE(::testing::PrintToString(settings));
    const config::Config config = pipeline_config(settings);
    const Plan plan = pipeline_plan(config);
    ASSERT_EQ(plan.ranks.size(), static_cast<std::size_t>(plan.world_ranks()));
    EXPECT_EQ(plan.world_ranks(), config.parallel.data * config.parallel.pipeline);
    const std::string digest = world_digest(plan, config);
    for (std::int32_t rank = 0; rank < plan.world_ranks(); ++rank) {
      const Plan own = rank_of_pipeline(config, plan.options, rank);
      const RankFigures& figures = plan.ranks[static_cast<std::size_t>(rank)];
      EXPECT_EQ(own.world_rank(), rank);
      EXPECT_EQ(own.peak_bytes, figures.peak_bytes);
      EXPECT_EQ(own.ranks.front().sent, figures.sent);
      EXPECT_TRUE(fits(own.peak_bytes, {config.memory.device_bytes, config.memory.pinned_bytes,
                                        config.memory.storage_bytes}));
      EXPECT_EQ(world_digest(own, config), digest);
      EXPECT_GE(figures.shares.bubble_s, 0);
      EXPECT_LE(figures.shares.bubble_s, plan.pipeline_bubble_s);
      EXPECT_GT(figures.compute_s, 0);
    }
    // All parameters have a stage.
    EXPECT_EQ(plan.options.stages.back().end, config.model.layers + 2);
    EXPECT_GT(plan.bound_s, 0);
    EXPECT_LE(plan.bound_s, plan.simulation.total_s);
  }
}

// A rank of a pipeline holds a part of the model, so budgets that are too small for one rank do.
TEST(PipelinePlans, ARefusalNamesTheLeastBudgetThatFits) {
  const Overrides device = places("device", "device", "device") +
                           Overrides{"memory.place.activation=device", "memory.device=1MiB"};
  const std::uint64_t least = least_device(pipeline_config(device));
  const std::uint64_t alone =
      least_device(pipeline_config(device + Overrides{"parallel.pipeline=1"}));
  EXPECT_LT(2 * least, alone);
  const auto with = [&](std::uint64_t bytes) {
    return planned(pipeline_config(
        device + Overrides{setting("memory.device", static_cast<std::int64_t>(bytes))}));
  };
  EXPECT_TRUE(std::holds_alternative<Plan>(with(least)));
  EXPECT_TRUE(std::holds_alternative<Refusal>(with(least - kPageBytes)));
}

TEST(PipelinePlans, MoreMicroBatchesHaveASmallerBubble) {
  const auto share = [](const char* microbatches) {
    const Plan plan = pipeline_plan(
        pipeline_config({microbatches, "model.layers=8", "model.hidden=512", "train.seq=128",
                         "model.vocab=256", "memory.device=1GiB", "memory.pinned=1GiB"}));
    return plan.pipeline_bubble_s / plan.pipeline_span_s;
  };
  const double few = share("train.accumulate=4");
  const double many = share("train.accumulate=24");
  EXPECT_NEAR(few, 3.0 / 7, 0.05);  // (p - 1) / (m + p - 1) for equal stages
  EXPECT_LT(many, few);
}

// With room for the parts of several units, the passes that recompute them run while a stage waits.
TEST(PipelinePlans, RecomputeInTheBubbleWhereItIsFaster) {
  const auto ahead = [](const char* device) {
    return pipeline_plan(pipeline_config({"model.layers=16", "model.hidden=256", "train.seq=128",
                                          "recompute.policy=unit", "memory.pinned=4GiB",
                                          "memory.place.activation=device", device}))
        .options.recompute_ahead;
  };
  EXPECT_GT(ahead("memory.device=4GiB"), 1);
}

// The stage with the longest passes bounds the step. In the first cut no border could move to make
// it shorter. Later cuts take fewer bytes at most.
TEST(PipelinePlans, NoStageCanGiveAUnitToItsNeighbour) {
  const config::Config config = pipeline_config({"model.vocab=4096", "model.hidden=128"});
  const std::unique_ptr<kernels::Kernels> kernels = kernels::make_host_kernels({1});
  const model::Model model(config::model_shape(config));
  const HardwareProfile hardware;
  const model::BatchShape batch = config::batch_shape(config);
  CostModel costs(config, model, batch, hardware);
  const schedule::StepModel step =
      make_step_model(model, batch, config::parameter_table(config, model), *kernels, *kernels);
  const std::vector<StageCut> cuts = stage_cuts(config, step, choose_order(config), costs);
  const auto seconds = [&](const schedule::UnitRange& stage) {
    double sum = 0;
    for (std::int32_t unit = stage.begin; unit < stage.end; ++unit) sum += costs.unit_s(unit);
    return sum;
  };
  const StageCut& stages = cuts.front();
  double most = 0;
  for (const schedule::UnitRange& stage : stages) most = std::max(most, seconds(stage));
  for (std::size_t i = 0; i + 1 < stages.size(); ++i) {
    const schedule::UnitRange& left = stages[i];
    const schedule::UnitRange& right = stages[i + 1];
    if (left.end - left.begin > 1 && seconds(left) == most) {
      EXPECT_GE(seconds({right.begin - 1, right.end}), most);
    }
    if (right.end - right.begin > 1 && seconds(right) == most) {
      EXPECT_GE(seconds({left.begin, left.end + 1}), most);
    }
  }
  const auto elems = [&](const StageCut& cut) {
    std::uint64_t largest = 0;
    for (const schedule::UnitRange& stage : cut) {
      std::uint64_t sum = 0;
      for (std::int32_t unit = stage.begin; unit < stage.end; ++unit) {
        sum += step.units[static_cast<std::size_t>(unit)].elems;
      }
      largest = std::max(largest, sum);
    }
    return largest;
  };
  // The embedding's table has most of the state and few of the passes, so it moves to a stage of
  // its own.
  ASSERT_GT(cuts.size(), 1u);
  EXPECT_LT(elems(cuts.back()), elems(cuts.front()));
  EXPECT_EQ(cuts.back().front().end, 1);
}

// Segments that a border cuts become shorter ones, and the others stay.
TEST(PipelinePlans, SegmentsEndAtTheBordersOfStages) {
  const config::Config config = pipeline_config({});
  const std::unique_ptr<kernels::Kernels> kernels = kernels::make_host_kernels({1});
  const model::Model model(config::model_shape(config));
  schedule::StepModel step =
      make_step_model(model, config::batch_shape(config), config::parameter_table(config, model),
                      *kernels, *kernels);
  const schedule::Recomputation whole = schedule::recompute_segments(step, 3);
  ASSERT_TRUE(whole.drops_output(1));
  for (const std::int32_t border : {2, 3, 4, 5}) {
    const StageCut stages{{0, border}, {border, 8}};
    step.pipeline.units = stages;
    const schedule::Recomputation cut = cut_at_stages(whole, stages);
    EXPECT_TRUE(schedule::is_possible(step, cut)) << border;
    EXPECT_EQ(cut == whole, schedule::is_possible(step, whole)) << border;
    for (std::int32_t unit = 0; unit < 8; ++unit) {
      EXPECT_EQ(cut.drops_output(unit), whole.drops_output(unit) && unit != border - 1);
      EXPECT_EQ(cut.parts_of(unit), whole.parts_of(unit));
    }
  }
}

std::string written_order(const std::string& name, const schedule::PipelineOrder& order) {
  const std::string path = pipeline_bench().run_directory(name);
  std::ofstream(path) << schedule::order_to_csv(order);
  return "parallel.schedule=csv:" + path;
}

TEST(PipelinePlans, AnOrderFromAFileIsTheOrderByName) {
  const schedule::PipelineOrder order = schedule::make_zb_h1_order(4, 8);
  const config::Config named = pipeline_config({"parallel.schedule=zb-h1"});
  for (const schedule::PipelineOrder& written : {order, schedule::list_messages(order)}) {
    const config::Config config = pipeline_config({written_order("order.csv", written)});
    const Plan plan = pipeline_plan(config);
    EXPECT_EQ(options_text(plan.options), options_text(pipeline_plan(named).options));
    EXPECT_EQ(plan.simulation.total_s, pipeline_plan(named).simulation.total_s);
  }
}

TEST(PipelinePlans, OrdersThatCannotBeAreRefusedByName) {
  const auto refusal_of_order = [](const schedule::PipelineOrder& order) {
    return refusal_of_plan({written_order("bad.csv", order)});
  };
  EXPECT_TRUE(
      holds(refusal_of_order(schedule::make_1f1b_order(3, 8)), "set parallel.pipeline = 3"));
  EXPECT_TRUE(holds(refusal_of_order(schedule::make_1f1b_order(4, 6)), "set train.accumulate = 6"));
  schedule::PipelineOrder backwards = schedule::make_gpipe_order(4, 8);
  for (auto& list : backwards.actions) std::reverse(list.begin() + 8, list.end());
  EXPECT_TRUE(holds(refusal_of_order(backwards), "cannot give the results of one rank"));
  schedule::PipelineOrder stuck = schedule::make_1f1b_order(4, 8);
  std::swap(stuck.actions[0][0], stuck.actions[0].back());
  EXPECT_TRUE(holds(refusal_of_order(stuck), "cannot run"));
  EXPECT_TRUE(holds(refusal_of_plan({"parallel.schedule=csv:/nowhere/order.csv"}),
                    "'/nowhere/order.csv' cannot be read"));
  // On a FIFO a read would wait for a writer, and a device never ends.
  const std::string fifo = pipeline_bench().run_directory("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path : {fifo, std::string("/dev/zero")}) {
    EXPECT_TRUE(holds(refusal_of_plan({"parallel.schedule=csv:" + path}),
                      "cannot be read (it is not a regular file)"));
  }
  std::ofstream(pipeline_bench().run_directory("text.csv")) << "0F0,nonsense\n";
  EXPECT_TRUE(holds(
      refusal_of_plan({"parallel.schedule=csv:" + pipeline_bench().run_directory("text.csv")}),
      "row 1, cell 2"));
}

TEST(PipelinePlans, SettingsThatCannotBeAreRefused) {
  EXPECT_TRUE(holds(refusal_of_plan({"parallel.pipeline=9"}), "the model has 8"));
  EXPECT_TRUE(holds(refusal_of_plan({"parallel.schedule=interleaved", "parallel.virtual_stages=3"}),
                    "a pipeline of 12 stages"));
  EXPECT_TRUE(holds(refusal_of_plan({"parallel.data=32", "train.accumulate=32"}), "at most 64"));
}

// Damaged stages of another rank's options are refused before anything is compiled.
// The cut of a pipeline with stashed weights decides its results, so no profile does.
TEST(PipelinePlans, DelayedUpdatesHaveOnePlaceAndACutOfTheirOwn) {
  const Overrides delayed{"train.clip=0", "model.tie_embeddings=false", "optimizer.placement=auto",
                          "parallel.updates=4", "train.steps=8"};
  const Plan stashing =
      pipeline_plan(pipeline_config(delayed + Overrides{"parallel.schedule=pipedream"}));
  EXPECT_EQ(stashing.updates(), 4);
  EXPECT_EQ(stashing.options.update, schedule::UpdatePlacement::kInBackward);
  EXPECT_EQ(schedule::carried_units(stashing.options, 8), 0);
  const std::vector<schedule::UnitRange> even{{0, 2}, {2, 4}, {4, 6}, {6, 8}};
  EXPECT_EQ(stashing.options.stages, even);
  const Plan buffered =
      pipeline_plan(pipeline_config(delayed + Overrides{"parallel.schedule=2bw"}));
  EXPECT_DOUBLE_EQ(buffered.step_s(), buffered.simulation.total_s / 4);
  EXPECT_TRUE(
      holds(refusal_of_plan(delayed + Overrides{"parallel.schedule=2bw", "train.accumulate=3"}),
            "set train.accumulate = 4"));
}

// The formulas of docs/design/pipelines.md, "Bytes", with all state on storage. A stage moves the
// optimizer's state once for each update, writes its weights as often, and reads each unit's
// weights in each pass and nowhere else. The same synchronous step with as many micro-batches reads
// as many.
TEST(PipelinePlans, DelayedUpdatesMoveTheBytesOfTheirFormulas) {
  constexpr int kUpdates = 5, kEach = 3, kRanks = 3;
  for (const std::string rule : {"pipedream", "pipedream-vsync", "2bw"}) {
    const int each = rule == "2bw" ? kEach : 1;
    const auto config_of = [&](const std::string& schedule, int microbatches, int updates) {
      return pipeline_config(
          {"model.family=llama", "model.tie_embeddings=false", "train.clip=0", "train.steps=10",
           "train.precision=fp32", "optimizer.placement=in_backward", "optimizer.carried_units=0",
           "memory.place.weight=storage", "memory.place.optimizer=storage", "memory.storage=1GiB",
           "parallel.pipeline=3", setting("train.accumulate", microbatches),
           setting("parallel.updates", updates), "parallel.schedule=" + schedule});
    };
    const config::Config config = config_of(rule, each, kUpdates);
    const Plan first = pipeline_plan(config);
    std::uint64_t activations = 0;
    for (const RankFigures& rank : first.ranks) activations += rank.sent.activations;
    const auto one = static_cast<std::uint64_t>(config.train.micro_batch * config.train.seq *
                                                config.model.hidden) *
                     sizeof(float);
    EXPECT_EQ(activations, 2 * one * kUpdates * static_cast<std::uint64_t>(each) * (kRanks - 1));
    for (std::int32_t rank = 0; rank < kRanks; ++rank) {
      SCOPED_TRACE(rule + ", rank " + std::to_string(rank));
      const Plan own = rank_of_pipeline(config, first.options, rank);
      const std::uint64_t weights = own.state_bytes_of(StateKind::kWeight);
      std::uint64_t optimizer = 0;
      for (const StateKind kind : kOptimizerKinds) optimizer += own.state_bytes_of(kind);
      EXPECT_EQ(own.step_bytes.storage_write, kUpdates * (optimizer + weights));
      std::uint64_t fetched = 0;
      for (const schedule::Instruction& instruction : own.training().instructions) {
        const bool reads = instruction.op == schedule::Op::kStorageRead;
        if (!reads) continue;
        const auto kind = own.training().buffers[instruction.writes.front().buffer].kind;
        if (kind == StateKind::kWeight) fetched += instruction.bytes;
      }
      EXPECT_EQ(own.step_bytes.storage_read, kUpdates * optimizer + fetched);
    }
  }
}

TEST(PipelinePlans, StagesOfAnotherPipelineAreRefused) {
  const config::Config config = pipeline_config({});
  schedule::StepOptions options = pipeline_plan(config).options;
  const auto refuse = [&](const std::vector<schedule::UnitRange>& stages) {
    options.stages = stages;
    EXPECT_TRUE(holds(message_of<InputError>([&] { rank_of_pipeline(config, options, 1); }),
                      "other stages"));
  };
  refuse({});
  refuse({{0, 4}, {4, 8}});
  refuse({{0, 2}, {2, 4}, {4, 6}, {6, 7}});
  refuse({{0, 2}, {3, 4}, {4, 6}, {6, 8}});
}

}  // namespace
}  // namespace sluice::planner
