// The run does exactly as the plan says: the peak bytes of each tier and the bytes moved over each
// link are the same. Nothing is allocated once training has begun.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/planned_session.hpp"
#include "tests/support/random_training.hpp"

namespace sluice::planner {
namespace {

using namespace testing;

// Most have ample budgets; the rest get exactly the bytes that the first plan needs.
constexpr std::uint64_t kConfigurations = 24;

std::string bytes_setting(const std::string& tier, const train::RunEvent& peak) {
  return "memory." + tier + "=" + std::to_string(peak.at(tier).get<std::uint64_t>());
}

// A speculative step that was redone also moves the bytes of the redo.
train::RunEvent planned_bytes(const train::RunEvent& plan, const train::RunEvent& step) {
  train::RunEvent bytes = plan.at("bytes_moved");
  if (!step.value("redone", false)) return bytes;
  for (const auto& [link, redo] : plan.at("speculation").at("redo_bytes_moved").items()) {
    bytes[link] = bytes.at(link).get<std::uint64_t>() + redo.get<std::uint64_t>();
  }
  return bytes;
}

void expect_plan_equals_run(const TrainingRecord& run, const config::Config& config) {
  ASSERT_EQ(run.end, train::TrainingEnd::kDone);
  const train::RunEvent& peak = run.plan.at("peak_bytes");
  EXPECT_EQ(run.done.at("peak_bytes"), peak);
  EXPECT_EQ(run.done.at("measured_peak_bytes"), peak);
  EXPECT_LE(peak.at("device"), config.memory.device_bytes);
  EXPECT_LE(peak.at("pinned"), config.memory.pinned_bytes);
  EXPECT_LE(peak.at("storage"), config.memory.storage_bytes);
  ASSERT_EQ(run.steps.size(), 2u);
  // Updates in the next forward pass are missing in the first step, and a drain makes the last.
  const bool carries = run.plan.at("carried_units") > 0;
  for (std::size_t step = carries ? 1 : 0; step < run.steps.size(); ++step) {
    EXPECT_EQ(run.steps[step].at("bytes_moved"), planned_bytes(run.plan, run.steps[step]));
  }
  for (const char* link : {"upload", "download", "storage_read", "storage_write"}) {
    std::uint64_t total = 0;
    for (const train::RunEvent& step : run.steps) {
      total += planned_bytes(run.plan, step).at(link).get<std::uint64_t>();
    }
    EXPECT_EQ(run.done.at("bytes_moved").at(link), total) << link;
  }
}

TEST(PlanEqualsRun, ForVariedConfigurations) {
  const TrainingBench bench;
  std::uint64_t moved_by_storage = 0;
  std::uint64_t redone_steps = 0;
  for (std::uint64_t seed = 0; seed < kConfigurations; ++seed) {
    Draws draw(seed, "test/plan_equals_run");
    const Overrides overrides = random_model(draw) + random_placement(draw) +
                                random_movement(draw) + Overrides{"train.steps=2"};
    SCOPED_TRACE(::testing::PrintToString(overrides));
    const std::string name = "run" + std::to_string(seed);
    const config::Config config = bench.config(name, overrides);
    const TrainingRecord run = TrainingBench::run(config);
    expect_plan_equals_run(run, config);
    if (HasFatalFailure()) continue;
    moved_by_storage += run.plan.at("bytes_moved").at("storage_read").get<std::uint64_t>();
    for (const train::RunEvent& step : run.steps) redone_steps += step.value("redone", false);
    if (seed % 3 != 0) continue;
    SCOPED_TRACE("budgets as planned");
    const train::RunEvent& peak = run.plan.at("peak_bytes");
    const config::Config exact =
        bench.config(name + "_exact", overrides + Overrides{bytes_setting("device", peak),
                                                            bytes_setting("pinned", peak),
                                                            bytes_setting("storage", peak)});
    expect_plan_equals_run(TrainingBench::run(exact), exact);
  }
  EXPECT_GT(moved_by_storage, 0u);
  EXPECT_GT(redone_steps, 0u);
}

// Updates that wait for the next step are made at an evaluation, a checkpoint and the end. Their
// bytes are in no step.
TEST(PlanEqualsRun, StepsAndTheTimesBetweenThemMoveAllBytes) {
  const TrainingBench bench;
  for (const char* mode : {"scratch", "durable"}) {
    const TrainingRecord run = TrainingBench::run(bench.config(
        mode,
        tiny_stored_model(4) + Overrides{"optimizer.placement=next_forward", "checkpoint.every=2",
                                         "data.eval_fraction=0.2", "train.eval_every=3",
                                         std::string("checkpoint.mode=") + mode}));
    ASSERT_EQ(run.end, train::TrainingEnd::kDone);
    ASSERT_EQ(run.steps.size(), 4u);
    for (const char* link : {"upload", "download", "storage_read", "storage_write"}) {
      const auto between = run.done.at("bytes_moved_between_steps").at(link).get<std::uint64_t>();
      std::uint64_t total = between;
      for (const train::RunEvent& step : run.steps) {
        total += step.at("bytes_moved").at(link).get<std::uint64_t>();
      }
      EXPECT_EQ(run.done.at("bytes_moved").at(link), total) << mode << ", " << link;
      if (std::string(link) == "storage_write") {
        EXPECT_GT(between, 0u);
      }
    }
  }
}

TEST(PlanEqualsRun, AlsoForEvaluation) {
  const TrainingBench bench;
  for (std::uint64_t seed = 100; seed < 106; ++seed) {
    Draws draw(seed, "test/plan_equals_run");
    const Overrides overrides = random_model(draw) + random_placement(draw) + random_movement(draw);
    SCOPED_TRACE(::testing::PrintToString(overrides));
    const config::Config config = bench.config("run", overrides);
    PlannedSession run(config);
    run.step(0);
    run.session().drain();
    const schedule::LinkBytes before = run.session().moved_bytes();
    run.evaluate();
    const schedule::LinkBytes after = run.session().moved_bytes();
    EXPECT_EQ((schedule::LinkBytes{after.upload - before.upload, after.download - before.download,
                                   after.storage_read - before.storage_read,
                                   after.storage_write - before.storage_write}),
              run.plan().evaluation_bytes);
  }
}

// The states of a piece are written side by side: no lane stops at the Release after a write.
TEST(StorageLanes, WriteSeveralPiecesAtOnce) {
  const TrainingBench bench;
  const config::Config config =
      bench.config("run", {"model.layers=2", "model.hidden=256", "model.heads=4",
                           "model.max_seq=16", "train.seq=16", "memory.place.optimizer=storage"});
  PlannedSession run(config);
  TraceRecorder trace;
  const auto fill = [&](std::int64_t microbatch, std::int32_t* tokens, std::int32_t* targets) {
    run.fill_tokens(microbatch, tokens, targets);
  };
  for (std::int64_t step = 0; step < 3; ++step) {
    run.session().train_step(step, 1e-3, fill, &trace);
  }
  std::vector<std::pair<std::int64_t, std::int64_t>> writes;
  for (const TraceSpan& span : trace.spans()) {
    if (trace.name_of(span.name) == "StorageWrite") writes.emplace_back(span.begin_ns, span.end_ns);
  }
  std::sort(writes.begin(), writes.end());
  std::size_t at_once = 0;
  for (std::size_t i = 1; i < writes.size(); ++i) at_once += writes[i].first < writes[i - 1].second;
  EXPECT_GT(writes.size(), 10u);
  EXPECT_GT(at_once, writes.size() / 10);
}

// Law 9, in steps that are redone and in steps that commit, too.
TEST(SteadyState, AllocatesNothing) {
  const TrainingBench bench;
  const Overrides redone{"optimizer.placement=speculative", "train.clip=0.001"};
  const Overrides durable{"checkpoint.mode=durable", "checkpoint.every=1"};
  checkpoint::CheckpointManifest manifest;
  manifest.data_fingerprint = std::string(32, '0');
  for (const std::string place : {"device", "pinned", "storage"}) {
    for (const Overrides& how : {Overrides{}, redone, durable}) {
      SCOPED_TRACE(place + (how.empty() ? "" : ", " + how.front()));
      const config::Config config =
          bench.config("run" + place + std::to_string(how.size()),
                       Overrides{"model.layers=2", "model.hidden=64", "model.heads=4",
                                 "train.seq=16", "train.accumulate=2"} +
                           places(place, place, place) + how);
      std::filesystem::create_directories(config.checkpoint.dir);
      PlannedSession run(config);
      const auto step = [&](std::int64_t at) {
        const auto fill = [&](std::int64_t mb, std::int32_t* tokens, std::int32_t* targets) {
          run.fill_tokens(mb, tokens, targets);
        };
        const bool commits = how == durable && at % 2 == 1;
        return run.session().train_step(at, 1e-2, fill, nullptr, commits ? &manifest : nullptr);
      };
      step(0);
      step(1);
      const std::uint64_t calls = run.session().allocation_calls();
      EXPECT_GT(calls, 0u);
      for (std::int64_t at = 2; at < 6; ++at) EXPECT_EQ(step(at).redone, how == redone);
      EXPECT_GT(run.evaluate(), 0.0);
      EXPECT_EQ(run.session().state().weights_hash().size(), 32u);
      step(6);
      EXPECT_EQ(run.session().allocation_calls(), calls);
      EXPECT_EQ(run.session().measured_peak_bytes(), run.plan().peak_bytes);
    }
  }
}

}  // namespace
}  // namespace sluice::planner
