// Law 1 over pipelines: any order of passes, any cut and any number of pipeline and data-parallel
// ranks gives the losses, norms and weights of one rank, to the bit.
#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "base/trace.hpp"
#include "engine/planner/bound/pipeline_choice.hpp"
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
  pick(13, {"memory.prefetch=1", "memory.prefetch=2", "memory.prefetch=0"});
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

// The most passes of micro-batches through a stage at once, by measured times: from the begin of
// the first unit's forward pass to the end of its last gradient of weights.
std::int32_t most_in_flight_of_run(const TraceRecorder& trace,
                                   const std::vector<schedule::UnitRange>& stages) {
  std::map<std::pair<std::size_t, std::int64_t>, std::pair<std::int64_t, std::int64_t>> spans;
  for (const TraceSpan& span : trace.spans()) {
    const std::string_view name = trace.name_of(span.name);
    const bool forward = name == "Forward" || name == "Loss", backward = name == "BackwardWeight";
    if (!forward && !backward) continue;
    const auto stage = std::find_if(stages.begin(), stages.end(),
                                    [&](const auto& range) { return span.unit < range.end; });
    const auto at = static_cast<std::size_t>(stage - stages.begin());
    const auto found = spans.try_emplace({at, span.microbatch}, span.begin_ns, span.end_ns).first;
    if (forward) found->second.first = std::min(found->second.first, span.begin_ns);
    if (backward) found->second.second = std::max(found->second.second, span.end_ns);
  }
  std::vector<std::pair<std::int64_t, int>> events;
  for (const auto& [pass, span] : spans) {
    events.emplace_back(span.first, 1);
    events.emplace_back(span.second, -1);
  }
  std::sort(events.begin(), events.end());
  int live = 0, most = 0;
  for (const auto& [at, change] : events) most = std::max(most, live += change);
  return most;
}

TEST(Pipelines, HaveAsManyMicrobatchesInFlightAsTheirOrders) {
  for (const char* name : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "vertical"}) {
    PipelineCase at;
    at.order = name;
    at.pipeline = 4;
    at.microbatches = 8;
    const std::set<std::string> several{"interleaved", "zb-v", "vertical"};
    at.virtual_stages = several.contains(name) ? 2 : 1;
    const TrainingBench bench;
    PlannedSession planned(config_of_case(bench, at, true));
    schedule::StepOptions options = planned.plan().options;
    options.stages = drawn_stages(kPipelineLayers + 2, at.pipeline * at.virtual_stages, 1);
    cut_segments(options.recompute, options.stages);
    const config::Config config = config_of_case(bench, at, false);
    Mutex mutex;
    std::vector<std::int32_t> most;
    train_on_ranks(config, options, 1, {}, -1, {}, [&](Session& session) {
      TraceRecorder trace;
      session.train_step(
          1, 1e-3,
          [&](std::int64_t, std::int32_t* tokens, std::int32_t* targets) {
            const auto rows = config::batch_shape(config).rows();
            std::fill(tokens, tokens + rows, 1);
            std::fill(targets, targets + rows, 2);
          },
          &trace);
      const MutexLock lock(mutex);
      most.push_back(most_in_flight_of_run(trace, options.stages));
    });
    std::vector<std::int32_t> of_order = most_in_flight(planner::choose_order(config));
    std::sort(most.begin(), most.end());
    std::sort(of_order.begin(), of_order.end());
    EXPECT_EQ(most, of_order) << name;
  }
}

}  // namespace
}  // namespace sluice::train
