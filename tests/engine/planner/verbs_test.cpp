// The whole run is in the plan: each phase (load, resume, train, evaluate, save, export) uses
// exactly the bytes that the plan states for it, and the plan's peaks hold them all.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.hpp"
#include "engine/checkpoint/huggingface_export.hpp"
#include "tests/support/heap_peak.hpp"
#include "tests/support/planned_session.hpp"
#include "tests/support/random_training.hpp"

namespace sluice::planner {
namespace {

using namespace testing;
using train::RunEvent;

constexpr std::uint64_t kConfigurations = 32;

Overrides random_run(Draws& draw) {
  return random_model(draw) + random_placement(draw) + random_movement(draw) +
         Overrides{"train.steps=3", "train.eval_every=2", "data.eval_fraction=0.2",
                   draw.chance(3) ? "checkpoint.mode=durable" : "checkpoint.mode=scratch",
                   draw.chance(2) ? "checkpoint.every=1" : "checkpoint.every=0"};
}

// A durable run cannot speculate.
bool is_refused(const Overrides& overrides) {
  const auto has = [&](const char* setting) {
    return std::find(overrides.begin(), overrides.end(), setting) != overrides.end();
  };
  return has("checkpoint.mode=durable") && has("optimizer.placement=speculative");
}

void expect_verbs(const TrainingRecord& run, const std::vector<std::string>& verbs) {
  ASSERT_EQ(run.end, train::TrainingEnd::kDone);
  const RunEvent& planned = run.plan.at("peak_bytes_by_verb");
  const RunEvent& used = run.done.at("peak_bytes_by_verb");
  ASSERT_EQ(used.size(), verbs.size()) << used;
  for (const std::string& verb : verbs) {
    EXPECT_EQ(used.at(verb), planned.at(verb)) << verb;
    for (const auto& [tier, bytes] : planned.at(verb).items()) {
      EXPECT_LE(bytes, run.plan.at("peak_bytes").at(tier)) << verb;
    }
  }
  EXPECT_EQ(run.done.at("measured_peak_bytes"), run.plan.at("peak_bytes"));
}

std::uint64_t bytes_in(const std::filesystem::path& directory) {
  std::uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file()) bytes += entry.file_size();
  }
  return bytes;
}

// The files of the newest checkpoint, and of the export.
void expect_files(const RunEvent& plan, const config::Config& config, const std::string& run) {
  const std::filesystem::path directory = run;
  const RunEvent& planned = plan.at("file_bytes");
  std::uint64_t exported = std::filesystem::file_size(directory / "weights.safetensors");
  if (std::filesystem::exists(directory / "huggingface")) {
    exported += bytes_in(directory / "huggingface");
  }
  EXPECT_EQ(exported, planned.at("export"));
  if (config.checkpoint.mode == config::Config::CheckpointMode::kDurable) {
    EXPECT_EQ(planned.at("save"), 0);
    return;
  }
  EXPECT_EQ(
      std::filesystem::file_size(directory / "checkpoints" / "step-00000003" / "state.safetensors"),
      planned.at("save"));
}

// Runs end after two steps as if by a signal, and are resumed for the third.
TEST(Verbs, UseExactlyThePlannedBytes) {
  const TrainingBench bench;
  std::uint64_t verbs_below_the_peak = 0;
  std::uint64_t done = 0;
  for (std::uint64_t seed = 0; done < kConfigurations; ++seed) {
    Draws draw(seed, "test/verbs");
    const Overrides overrides = random_run(draw);
    if (is_refused(overrides)) continue;
    SCOPED_TRACE(::testing::PrintToString(overrides));
    ++done;
    const std::string name = "run" + std::to_string(seed);
    const config::Config config = bench.config(name, overrides);
    train::TrainingOptions two_steps;
    two_steps.stop_at_step = 2;
    expect_verbs(TrainingBench::run(config, two_steps),
                 {"load", "train", "evaluate", "save", "export"});
    train::TrainingOptions resume;
    resume.resume = bench.first_run(name);
    const TrainingRecord resumed = TrainingBench::run(config, resume);
    expect_verbs(resumed, {"resume", "train", "save", "export"});
    if (HasFatalFailure()) continue;
    expect_files(resumed.plan, config, bench.first_run(name));
    for (const auto& [verb, bytes] : resumed.plan.at("peak_bytes_by_verb").items()) {
      verbs_below_the_peak += bytes != resumed.plan.at("peak_bytes");
    }
    std::filesystem::remove_all(bench.run_directory(name));
  }
  EXPECT_GT(verbs_below_the_peak, done);
}

// The plan's word is not all there is: a pattern in the pinned memory beyond a phase's peak stays.
TEST(Verbs, TouchNoPinnedMemoryBeyondTheirPeaks) {
  static constexpr std::byte kUntouched{0xA5};
  const TrainingBench bench;
  std::uint64_t untouched_bytes = 0;
  std::uint64_t touched_bytes = 0;
  for (const std::string optimizer : {"pinned", "storage"}) {
    SCOPED_TRACE(optimizer);
    PlannedSession run(bench.config(
        "run_" + optimizer,
        Overrides{"model.layers=3", "model.hidden=128", "model.heads=4", "train.seq=32",
                  "train.accumulate=3", "optimizer.placement=after_backward"} +
            places("pinned", "pinned", optimizer)));
    train::Session& session = run.session();
    const std::uint64_t homes_end = runtime::persistent_pinned_bytes(run.plan().training());
    const auto check = [&](Verb verb, const auto& work) {
      const std::span<std::byte> spare = session.export_piece();
      std::fill(spare.begin(), spare.end(), kUntouched);
      work();
      const std::uint64_t peak = run.plan().verb_peaks[static_cast<std::size_t>(verb)][1];
      const std::span<std::byte> beyond =
          spare.subspan(std::min<std::uint64_t>(peak - homes_end, spare.size()));
      const auto untouched = [](std::span<const std::byte> bytes) {
        return static_cast<std::uint64_t>(std::count(bytes.begin(), bytes.end(), kUntouched));
      };
      EXPECT_EQ(untouched(beyond), beyond.size()) << verb_name(verb);
      untouched_bytes += beyond.size();
      touched_bytes += spare.size() - untouched(spare);
    };
    check(Verb::kTrain, [&] { run.step(0); });
    check(Verb::kEvaluate, [&] { run.evaluate(); });
    if (optimizer == "pinned") continue;  // state is visited in place
    check(Verb::kLoad, [&] { session.state().initialize(7); });
    check(Verb::kSave, [&] { session.state().save(bench.run_directory("state.safetensors")); });
  }
  EXPECT_GT(untouched_bytes, kMiB);
  EXPECT_GT(touched_bytes, kMiB);
}

// In addition to the planned bytes, no phase takes more of the heap than a buffer of 1 MiB and
// names, with a model whose state is many times as large.
TEST(Verbs, KeepNothingOnTheHeap) {
  constexpr std::uint64_t kMostBytes = 3 * kMiB / 2;
  const TrainingBench bench;
  const config::Config config = bench.config(
      "run", Overrides{"model.layers=3", "model.hidden=384", "model.heads=4", "model.vocab=1000",
                       "train.seq=16", "train.micro_batch=1", "memory.pinned=1GiB"} +
                 places("pinned", "pinned", "storage"));
  PlannedSession run(config);
  ASSERT_GT(run.plan().state_bytes, 16 * kMostBytes);
  train::Session& session = run.session();
  const std::string saved = bench.run_directory("saved");
  const std::string weights = bench.run_directory("weights.safetensors");
  checkpoint::CheckpointManifest manifest;
  manifest.data_fingerprint = std::string(32, '0');
  run.step(0);
  const auto expect_small = [&](const char* verb, const auto& work) {
    EXPECT_LT(heap_peak_of(work), kMostBytes) << verb;
  };
  expect_small("load", [&] { session.state().initialize(7); });
  expect_small("evaluate", [&] { run.evaluate(); });
  expect_small("save", [&] { checkpoint::save_checkpoint(saved, manifest, session.state()); });
  expect_small("resume", [&] {
    checkpoint::load_checkpoint(checkpoint::find_checkpoint(saved), session.state());
  });
  expect_small("export", [&] {
    session.state().export_weights(weights);
    checkpoint::export_huggingface(checkpoint::SafetensorsReader(weights),
                                   config::model_shape(config), DType::kBF16,
                                   bench.run_directory("huggingface"), session.export_piece());
  });
  // The counter sees a buffer.
  EXPECT_GT(heap_peak_of([&] { std::vector<std::byte> buffer(2 * kMostBytes); }), kMostBytes);
}

}  // namespace
}  // namespace sluice::planner
