// Pipelines whose updates are delayed (PipeDream with stashed weights, with vertical sync, and 2BW)
// compared with a plain loop of each rule: one model in plain memory, and a list of the weights
// after every update. Losses and final weights are equal to the bit.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.hpp"
#include "base/trace.hpp"
#include "tests/support/pipeline_training.hpp"
#include "tests/support/plain_loop.hpp"
#include "tests/support/temp_directory.hpp"

namespace sluice::train {
namespace {

using namespace testing;

constexpr std::int64_t kUpdates = 20;
constexpr std::int64_t kLayers = 2;

struct DelayedCase {
  std::string rule = "pipedream";
  int pipeline = 2;
  int data = 1;
  int zero = 0;
  int microbatches = 1;  // of each pipeline and update
  int updates = 20;      // of each schedule
  Overrides settings = {};
};

Overrides delayed_model(const DelayedCase& at) {
  return Overrides{"model.family=llama",
                   "model.tie_embeddings=false",
                   "model.layers=" + std::to_string(kLayers),
                   "model.hidden=32",
                   "model.heads=2",
                   "model.vocab=64",
                   "train.seq=8",
                   "train.micro_batch=1",
                   "train.steps=20",
                   "train.precision=fp32",
                   "train.clip=0",
                   "train.order=microbatch",
                   "optimizer.placement=in_backward",
                   "optimizer.carried_units=0",
                   "train.accumulate=" + std::to_string(at.microbatches * at.data)} +
         at.settings;
}

std::vector<schedule::UnitRange> even_stages(int stages) {
  std::vector<schedule::UnitRange> ranges;
  const auto units = static_cast<std::int32_t>(kLayers) + 2;
  for (std::int32_t stage = 0; stage < stages; ++stage) {
    ranges.push_back({units * stage / stages, units * (stage + 1) / stages});
  }
  return ranges;
}

// The update that stage `stage` of `stages` lacks least when micro-batch k of a schedule begins
// there, as the papers write it; one micro-batch in each update but for 2BW.
std::int64_t version_by_rule(const DelayedCase& at, std::int64_t stage, std::int64_t k) {
  const std::int64_t after = at.rule == "pipedream" ? at.pipeline - stage - 1 : at.pipeline - 1;
  const std::int64_t of = at.rule == "2bw" ? k / at.microbatches - 1 : k - after;
  return std::max<std::int64_t>(of, 0);
}

// Data-parallel ranks take micro-batches in turn, each a pipeline of its own.
UpdateRule rule_of(const DelayedCase& at) {
  return {at.updates, [at](std::size_t unit, std::int64_t microbatch) {
            std::int64_t stage = 0;
            for (const schedule::UnitRange& range : even_stages(at.pipeline)) {
              if (static_cast<std::int32_t>(unit) >= range.end) ++stage;
            }
            return version_by_rule(at, stage, microbatch / at.data);
          }};
}

// Transient weights that are no windows of fetches have the shape and the tier of their home.
std::int32_t most_places(const schedule::Schedule& list, std::int32_t unit) {
  std::int32_t live = 1, most = 1;  // the home
  std::set<schedule::BufferId> born;
  for (const schedule::Instruction& instruction : list.instructions) {
    for (const schedule::Use& use : instruction.writes) {
      const schedule::Buffer& buffer = list.buffers[use.buffer];
      if (buffer.unit != unit || buffer.kind != StateKind::kWeight || buffer.persistent) continue;
      if (born.insert(use.buffer).second) most = std::max(most, ++live);
    }
    if (instruction.op != schedule::Op::kRelease) continue;
    for (const schedule::Use& use : instruction.reads) live -= born.contains(use.buffer) ? 1 : 0;
  }
  return most;
}

config::Config config_of(const TrainingBench& bench, const DelayedCase& at) {
  return bench.config(
      "run", delayed_model(at) + Overrides{"parallel.data=" + std::to_string(at.data),
                                           "parallel.zero=" + std::to_string(at.zero),
                                           "parallel.pipeline=" + std::to_string(at.pipeline),
                                           "parallel.schedule=" + at.rule,
                                           "parallel.updates=" + std::to_string(at.updates)});
}

// Plans the whole world, and counts in the list of each stage the places of the unit that has most:
// an embedding's weights are not read on the way back.
std::vector<std::int32_t> most_places_of_stages(const DelayedCase& at) {
  const TrainingBench bench;
  DelayedCase on_device = at;
  on_device.settings = on_device.settings + places("device", "device", "device");
  const config::Config config = config_of(bench, on_device);
  const model::Model model(config::model_shape(config));
  const train::Backend backend = one_threaded_backend(config);
  const auto plan =
      planner::make_plan(config, model, *backend.device_kernels, {}, backend.host_kernels.get());
  const auto& first = std::get<planner::Plan>(plan);
  std::vector<std::int32_t> most(first.pipeline.units.size());
  for (std::size_t stage = 0; stage < most.size(); ++stage) {
    const planner::Plan own =
        planner::plan_rank(config, model, *backend.device_kernels, {}, first.options,
                           static_cast<std::int32_t>(stage), backend.host_kernels.get());
    const schedule::UnitRange& units = first.pipeline.units[stage];
    for (std::int32_t unit = units.begin; unit < units.end; ++unit) {
      most[stage] = std::max(most[stage], most_places(own.training(), unit));
    }
  }
  return most;
}

// The most versions of the unit's weights that are needed at once, by the measured times of its
// updates and passes. After each update that is the new version, and all that passes still to end
// read.
std::int32_t most_live_in_run(const TraceRecorder& trace, const DelayedCase& at,
                              std::int32_t unit) {
  std::vector<std::int64_t> updates_ns;
  std::map<std::int64_t, std::int64_t> ends_ns;  // of backward passes, by micro-batch
  for (const TraceSpan& span : trace.spans()) {
    if (span.unit != unit) continue;
    if (trace.name_of(span.name) == "OptimizerStep") updates_ns.push_back(span.end_ns);
    if (trace.name_of(span.name) == "BackwardWeight") ends_ns[span.microbatch] = span.end_ns;
  }
  std::sort(updates_ns.begin(), updates_ns.end());
  std::size_t most = 0;
  for (std::size_t i = 0; i < updates_ns.size(); ++i) {
    const auto made = static_cast<std::int64_t>(i) + 1;
    std::set<std::int64_t> live{made};
    for (const auto& [microbatch, end_ns] : ends_ns) {
      const std::int64_t read = version_by_rule(at, unit, microbatch);  // a unit in each stage
      if (end_ns > updates_ns[i] && read < made) live.insert(read);
    }
    most = std::max(most, live.size());
  }
  return static_cast<std::int32_t>(most);
}

void expect_plain_loop(const DelayedCase& at) {
  SCOPED_TRACE(at.rule + ", " + std::to_string(at.pipeline) + " stages, " +
               std::to_string(at.data) + " data ranks, ZeRO " + std::to_string(at.zero) + ", " +
               std::to_string(at.microbatches) + " micro-batches, " + std::to_string(at.updates) +
               " updates, " + ::testing::PrintToString(at.settings));
  const TrainingBench bench;
  const config::Config alone = bench.config("run", delayed_model(at));
  PlannedSession planned(alone);
  const TempDirectory directory;
  const std::string initial = directory.file("initial.safetensors");
  const std::string trained = directory.file("trained.safetensors");
  planned.session().state().export_weights(initial);
  PlainLoop loop(alone, rule_of(at), initial);
  loop.run(kUpdates);

  schedule::StepOptions options = planned.plan().options;
  options.stages = even_stages(at.pipeline);
  options.exchange_lag = 0;
  cut_segments(options.recompute, options.stages);
  const config::Config config = config_of(bench, at);
  const RanksRun run = train_on_ranks(config, options, kUpdates, {}, -1, {}, [&](Session& session) {
    session.state().export_weights(trained);
  });
  for (const RanksRecord& rank : run.ranks) EXPECT_EQ(rank.losses, loop.losses());
  EXPECT_EQ(run.sent_bytes, run.planned_bytes);
  EXPECT_TRUE(loop.has_weights(trained));
}

TEST(DelayedUpdates, StashedWeightsEqualAPlainLoop) {
  expect_plain_loop({.pipeline = 2});
  expect_plain_loop({.pipeline = 3, .settings = {"optimizer.name=lion"}});
  expect_plain_loop({.pipeline = 4, .updates = 5});
}

TEST(DelayedUpdates, VerticalSyncEqualsAPlainLoop) {
  expect_plain_loop({.rule = "pipedream-vsync", .pipeline = 2, .updates = 10});
  expect_plain_loop({.rule = "pipedream-vsync", .pipeline = 4});
}

TEST(DelayedUpdates, DoubleBufferedWeightsEqualAPlainLoop) {
  expect_plain_loop({.rule = "2bw", .pipeline = 2, .microbatches = 2});
  expect_plain_loop({.rule = "2bw", .pipeline = 3, .microbatches = 4, .updates = 10});
}

TEST(DelayedUpdates, VersionsMayLieInAnyTier) {
  for (const Overrides& where :
       {places("pinned", "pinned", "pinned"), places("storage", "storage", "storage"),
        places("pinned", "device", "storage"), places("device", "storage", "pinned")}) {
    expect_plain_loop({.pipeline = 3, .settings = where});
    expect_plain_loop({.rule = "2bw", .pipeline = 2, .microbatches = 3, .settings = where});
  }
}

TEST(DelayedUpdates, DataRanksAndEveryZeroStageEqualAPlainLoop) {
  for (const int zero : {0, 1, 2, 3}) {
    expect_plain_loop({.rule = zero % 2 == 0 ? "2bw" : "pipedream-vsync",
                       .data = 2,
                       .zero = zero,
                       .microbatches = zero % 2 == 0 ? 2 : 1,
                       .updates = 10});
  }
}

std::int32_t versions_by_rule(const DelayedCase& at, std::int32_t stage) {
  if (at.rule == "2bw") return 2;
  return at.rule == "pipedream" ? at.pipeline - stage : at.pipeline;
}

TEST(DelayedUpdates, ARunNeedsAsManyVersionsAsTheRuleSays) {
  for (const DelayedCase& at :
       {DelayedCase{.pipeline = 4}, DelayedCase{.rule = "pipedream-vsync", .pipeline = 4},
        DelayedCase{.rule = "2bw", .pipeline = 4, .microbatches = 4}}) {
    const TrainingBench bench;
    DelayedCase on_device = at;
    on_device.settings = places("device", "device", "device");
    const config::Config config = config_of(bench, on_device);
    PlannedSession planned(bench.config("run", delayed_model(on_device)));
    schedule::StepOptions options = planned.plan().options;
    options.stages = even_stages(at.pipeline);
    options.exchange_lag = 0;
    Mutex mutex;
    std::vector<std::int32_t> most(static_cast<std::size_t>(at.pipeline));
    train_on_ranks(config, options, kUpdates, {}, -1, {}, [&](Session& session) {
      TraceRecorder trace;
      const std::vector<double> lrs(static_cast<std::size_t>(at.updates), 1e-3);
      session.train_steps(
          kUpdates, lrs,
          [&](std::int64_t, std::int32_t* tokens, std::int32_t* targets) {
            const auto rows = config::batch_shape(config).rows();
            std::fill(tokens, tokens + rows, 1);
            std::fill(targets, targets + rows, 2);
          },
          &trace);
      const MutexLock lock(mutex);
      for (std::int32_t unit = 0; unit < at.pipeline; ++unit) {
        auto& of_unit = most[static_cast<std::size_t>(unit)];
        of_unit = std::max(of_unit, most_live_in_run(trace, at, unit));
      }
    });
    for (std::int32_t stage = 0; stage < at.pipeline; ++stage) {
      EXPECT_EQ(most[static_cast<std::size_t>(stage)], versions_by_rule(at, stage))
          << at.rule << ", stage " << stage;
    }
  }
}

// A list has as many places for the weights of a stage as its rule needs versions, and no more.
TEST(DelayedUpdates, KeepAsManyVersionsAsTheRuleSays) {
  for (const DelayedCase& at :
       {DelayedCase{.pipeline = 4}, DelayedCase{.rule = "pipedream-vsync", .pipeline = 4},
        DelayedCase{.rule = "2bw", .pipeline = 4, .microbatches = 4}}) {
    DelayedCase larger = at;
    larger.settings = {"model.layers=6"};
    const auto places = most_places_of_stages(larger);
    ASSERT_EQ(places.size(), static_cast<std::size_t>(at.pipeline));
    for (std::int32_t stage = 0; stage < at.pipeline; ++stage) {
      EXPECT_EQ(places[static_cast<std::size_t>(stage)], versions_by_rule(at, stage))
          << at.rule << ", stage " << stage;
    }
  }
}

}  // namespace
}  // namespace sluice::train
