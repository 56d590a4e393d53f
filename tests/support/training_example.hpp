// Whole training runs for tests: a text to learn, a configuration from overrides, and the report of
// a run, kept to the bit.
#pragma once

#include <bit>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/rng.hpp"
#include "engine/train/training_run.hpp"
#include "tests/support/sweep.hpp"
#include "tests/support/temp_directory.hpp"

namespace sluice::testing {

using Overrides = std::vector<std::string>;

inline Overrides operator+(Overrides first, const Overrides& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// Words in a seeded order: a byte-level model learns their spelling within a few steps.
inline std::string example_text(std::size_t bytes) {
  static constexpr const char* kWords[] = {"weight ",   "gradient ", "tier ",   "chunk ",
                                           "schedule ", "storage ",  "lane.\n", "fetch "};
  const CounterRng random(7, stream_of("test/text"));
  std::string text;
  for (std::uint64_t i = 0; text.size() < bytes; ++i) text += kWords[random.below(i, 8)];
  return text;
}

// The report of one process of a run; doubles as their bits.
struct TrainingRecord {
  train::TrainingEnd end = train::TrainingEnd::kRefused;
  std::vector<std::uint64_t> losses, norms;  // of each step
  std::vector<std::uint64_t> eval_losses;
  std::string weights_hash;  // empty where the run did not end
  train::RunEvent plan, done;
  std::vector<train::RunEvent> steps;
  std::vector<train::RunEvent> plans;  // of each part that was appended

  double loss(std::size_t step) const { return std::bit_cast<double>(losses.at(step)); }
  // Appends the reports of a resumed process.
  void append(const TrainingRecord& rest) {
    losses.insert(losses.end(), rest.losses.begin(), rest.losses.end());
    norms.insert(norms.end(), rest.norms.begin(), rest.norms.end());
    eval_losses.insert(eval_losses.end(), rest.eval_losses.begin(), rest.eval_losses.end());
    steps.insert(steps.end(), rest.steps.begin(), rest.steps.end());
    end = rest.end;
    weights_hash = rest.weights_hash;
    plan = rest.plan;
    plans.push_back(rest.plan);
    done = rest.done;
  }
};

// Choices that the planner then hardly searches for: on models this small a search takes longer
// than the steps. For runs that are not about plans; later settings win.
inline const Overrides kChosenByHand{"recompute.policy=none", "memory.prefetch=1",
                                     "train.order=microbatch", "memory.place.activation=device"};

// Leaves the choices of kChosenByHand to the planner, whatever the build.
inline const Overrides kSearchedFor{"recompute.policy=auto", "memory.prefetch=2",
                                    "train.order=auto", "memory.place.activation=auto"};

// What a test leaves open. A sanitizer's run chooses by hand, for there the searches took nine
// tenths of the time; DrawnConfigurations and SharedDevice search under it as well.
inline Overrides left_open() {
  return samples_sweeps() ? kChosenByHand : Overrides{};
}

// A directory with a text and room for runs.
class TrainingBench {
 public:
  TrainingBench() {
    std::ofstream(directory_.file("text"), std::ios::binary) << example_text(8000);
  }

  // The log.dir of the run called `run`, and the directory of the first run in it.
  std::string run_directory(const std::string& run) const { return directory_.file(run); }
  std::string first_run(const std::string& run) const { return run_directory(run) + "/0001"; }

  // The overrides come last, so that they win.
  config::Config config(const std::string& run, const Overrides& overrides) const {
    const Overrides base{"data.paths=[\"" + directory_.file("text") + "\"]",
                         "log.dir=" + run_directory(run), "memory.storage=1GiB",
                         "memory.device=256MiB", "memory.pinned=256MiB"};
    return config::parse_config("", "test", base + left_open() + overrides);
  }

  // observe: called after each step, may be empty. options.resume: a run, or a log.dir.
  static TrainingRecord run(const config::Config& config,
                            const train::TrainingOptions& options = {},
                            const train::StepObserver& observe = {}) {
    TrainingRecord record;
    const train::EventSink sink = [&](const train::RunEvent& event) {
      const auto& kind = event.at("event");
      if (kind == "plan") record.plan = event;
      if (kind == "step") record.steps.push_back(event);
      if (kind == "eval") {
        record.eval_losses.push_back(std::bit_cast<std::uint64_t>(event.at("loss").get<double>()));
      }
      if (kind == "done") {
        record.done = event;
        record.weights_hash = event.at("weights_hash").get<std::string>();
      }
    };
    const train::StepObserver note = [&](const train::StepReport& report) {
      record.losses.push_back(std::bit_cast<std::uint64_t>(report.loss));
      record.norms.push_back(std::bit_cast<std::uint64_t>(report.grad_norm));
      if (observe) observe(report);
    };
    if (options.resume.empty()) {
      record.end = train::train(config, options, sink, note);
      return record;
    }
    const auto resume = [&](const std::string& run) {
      train::TrainingOptions resumed = options;
      resumed.resume = run;
      return train::train(config, resumed, sink, note);
    };
    record.end = train::resume_newest(options.resume, resume, options.world);
    return record;
  }

 private:
  TempDirectory directory_;
};

inline Overrides places(const std::string& weight, const std::string& gradient,
                        const std::string& optimizer) {
  return {"memory.place.weight=" + weight, "memory.place.gradient=" + gradient,
          "memory.place.optimizer=" + optimizer};
}

// Tiers of all state, a different choice for each of five numbers but for two on pinned memory.
inline Overrides places_in_turn(std::size_t i) {
  switch (i % 5) {
    case 0:
      return places("device", "device", "device");
    case 1:
      return places("pinned", "pinned", "storage");
    case 2:
      return places("storage", "storage", "storage");
    default:
      return places("pinned", "pinned", "pinned");
  }
}

// The least that has every kind of unit and uses every lane, all of it on storage.
inline Overrides tiny_stored_model(int steps) {
  return kChosenByHand + Overrides{"model.layers=1",      "model.hidden=32",
                                   "model.heads=2",       "train.seq=16",
                                   "train.micro_batch=1", "train.steps=" + std::to_string(steps)} +
         places("storage", "storage", "storage");
}

}  // namespace sluice::testing
