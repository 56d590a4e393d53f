// A short durable run on a disk in memory. Every crash of it must leave a whole state that the run
// committed, none older than the last commit that had returned.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/checkpoint/durable_recovery.hpp"
#include "tests/support/crash_engine.hpp"
#include "tests/support/training_example.hpp"

namespace sluice::testing {

class CrashRun {
 public:
  explicit CrashRun(const Overrides& overrides)
      : overrides_(Overrides{"model.layers=1", "model.hidden=32", "model.heads=2", "train.seq=16",
                             "train.micro_batch=1", "train.accumulate=2", "train.steps=7",
                             "checkpoint.mode=durable", "checkpoint.every=2",
                             "data.eval_fraction=0.1", "train.eval_every=3"} +
                   overrides) {
    disk_ = train_on_disk(bench_.config("run", overrides_), {}, &steps_);
    for (const std::int64_t step : steps_) {
      train::TrainingOptions options;
      options.stop_at_step = step;
      const auto disk =
          train_on_disk(bench_.config("to" + std::to_string(step), overrides_), options, nullptr);
      const auto found = recover(disk->files);
      if (!found) throw std::runtime_error("a whole run left no state");
      expected_[step] = contents(disk->files, found->state);
    }
    for (std::size_t i = 0; i < disk_->ops.size(); ++i) {
      if (disk_->ops[i].flush && disk_->ops[i].path.ends_with(".log")) returned_.push_back(i);
    }
    returned_.erase(returned_.begin());  // that of the log's header
  }

  std::size_t operations() const { return disk_->ops.size(); }
  const std::vector<std::int64_t>& committed_steps() const { return steps_; }

  // Empty if the crash leaves a state that it may; else describes that state.
  std::optional<std::string> breach(std::size_t until, std::uint64_t seed,
                                    const std::string& lies = "-") const {
    const DiskImage image = disk_->after_crash(until, seed, lies);
    const auto found = recover(image);
    std::size_t returned = 0;
    while (returned < returned_.size() && returned_[returned] < until) ++returned;
    if (!found) {
      if (returned == 0) return std::nullopt;
      return "no state, and step " + std::to_string(steps_.at(returned - 1)) + " was committed";
    }
    const std::int64_t step = found->manifest.step;
    const bool last = returned > 0 && step == steps_.at(returned - 1);
    const bool next = returned < steps_.size() && step == steps_.at(returned);
    if (!last && !next) {
      return "step " + std::to_string(step) + " after " + std::to_string(returned) + " commits";
    }
    if (contents(image, found->state) == expected_.at(step)) return std::nullopt;
    return "other state than that of step " + std::to_string(step);
  }

 private:
  using Contents = std::map<std::pair<StateKind, std::int32_t>, offload::Digest128>;

  std::shared_ptr<CrashDisk> train_on_disk(const config::Config& config,
                                           train::TrainingOptions options,
                                           std::vector<std::int64_t>* steps) const {
    auto disk = std::make_shared<CrashDisk>();
    options.wrap_storage = [&](std::unique_ptr<offload::StorageEngine>) {
      return std::make_unique<CrashEngine>(disk);
    };
    const train::EventSink sink = [&](const train::RunEvent& event) {
      if (steps == nullptr || event.at("event") != "checkpoint") return;
      steps->push_back(event.at("step").get<std::int64_t>());
    };
    train::train(config, options, sink, [](const train::StepReport&) {});
    return disk;
  }

  static std::optional<checkpoint::DurableFound> recover(const DiskImage& image) {
    auto disk = std::make_shared<CrashDisk>();
    disk->files = image;
    CrashEngine engine(disk);
    const std::vector<std::string> logs = disk->paths_ending(".log");
    if (logs.size() != 1) return std::nullopt;
    std::vector<checkpoint::PassedOver> passed_over;
    return checkpoint::recover_state(engine, logs.front(), {}, passed_over);
  }

  // The homes in the one file of the space: stripes are neighbours there.
  static Contents contents(const DiskImage& image, const checkpoint::SavedState& state) {
    const Bytes& file = image.at(state.files.at(0));
    Contents contents;
    for (const runtime::SavedHome& home : state.homes) {
      contents[{home.kind, home.unit}] = offload::digest_of(file.data() + home.offset, home.bytes);
    }
    return contents;
  }

  TrainingBench bench_;
  Overrides overrides_;
  std::shared_ptr<CrashDisk> disk_;
  std::vector<std::int64_t> steps_;            // committed, in order
  std::vector<std::size_t> returned_;          // the operation that ended each commit
  std::map<std::int64_t, Contents> expected_;  // by step
};

// `count` crashes of each kind of run: placements, optimizers, and a commit of every step.
inline void expect_every_crash_recovers(std::uint64_t count) {
  const std::vector<Overrides> runs{
      places("storage", "storage", "storage"),
      places("pinned", "pinned", "storage") + Overrides{"checkpoint.every=1"},
      places("device", "device", "device"),
      places("storage", "pinned", "pinned") + Overrides{"optimizer.name=adafactor"}};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    SCOPED_TRACE("run " + std::to_string(i));
    const CrashRun run(runs[i]);
    const CounterRng random(i, stream_of("test/crash_moment"));
    for (std::uint64_t seed = 0; seed < count; ++seed) {
      const std::size_t until = random.below(seed, run.operations() + 1);
      const std::optional<std::string> breach = run.breach(until, seed);
      ASSERT_FALSE(breach.has_value())
          << *breach << "; crash " << seed << " after " << until << " operations";
    }
  }
}

}  // namespace sluice::testing
