// Law 1 as data. A row names a configuration, its reference run, and cases that must give the
// reference's bits: losses, gradient norms, evaluations, loss scales and final weights. One body
// runs every row.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "offload/storage_engine.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/sweep.hpp"
#include "tests/support/training_example.hpp"

namespace sluice::testing {

// One process of a case: its settings, and the step after which it stops; 0: it runs to the end.
struct Part {
  Overrides overrides;
  std::int64_t stop = 0;
};

// A run in one part, or in several that each resume the one before.
struct Case {
  Case(std::string case_name, Overrides overrides)
      : name(std::move(case_name)), parts{{std::move(overrides)}} {}
  Case(std::string case_name, std::vector<Part> several)
      : name(std::move(case_name)), parts(std::move(several)) {}
  std::string name;
  std::vector<Part> parts;
};

enum class StopBy { kStep, kSignal };

struct Row {
  std::string name;
  Overrides model;      // of the reference and of every case
  Overrides reference;  // added for the reference alone
  std::vector<Case> cases;
  StopBy stop_by = StopBy::kStep;
  // More promises, where a row has them; may be empty.
  std::function<void(const TrainingRecord& reference)> check_reference{};
  std::function<void(const Case&, const TrainingRecord& run)> check{};
};

// The name that a failure prints.
inline void PrintTo(const Row& row, std::ostream* out) {
  *out << row.name;
}

// A GPT-2 of width 64 that learns within a few steps.
inline Overrides small_gpt2(int layers, int steps) {
  return {"model.family=gpt2",  "model.layers=" + std::to_string(layers),
          "model.hidden=64",    "model.heads=4",
          "train.seq=32",       "train.steps=" + std::to_string(steps),
          "optimizer.warmup=3", "train.micro_batch=2",
          "train.accumulate=2"};
}
inline const Overrides kLearning{"optimizer.lr=0.005", "data.eval_fraction=0.1"};

// Homes of weights, gradients and optimizer state.
inline const Overrides kResident = places("device", "device", "device");
inline const Overrides kPinned = places("pinned", "pinned", "pinned");
inline const Overrides kStored = places("storage", "storage", "storage");
inline const Overrides kPinnedState = places("pinned", "pinned", "storage");  // moments on storage
inline const Overrides kSpread = places("device", "pinned", "storage");       // one tier each
inline const Overrides kUneven = places("device", "storage", "pinned");

// When updates are made, and how memory moves.
inline const Overrides kAfterBackward{"optimizer.placement=after_backward"};
inline const Overrides kInBackward{"optimizer.placement=in_backward"};
inline const Overrides kNextForward{"optimizer.placement=next_forward"};
inline const Overrides kSpeculative{"optimizer.placement=speculative", "optimizer.carried_units=0"};
// The first units' updates in the next forward pass, with others in the backward pass.
inline Overrides carried(int units) {
  return {"optimizer.carried_units=" + std::to_string(units)};
}
inline const Overrides kUnitOrder{"train.order=unit"};
inline const Overrides kRecompute{"recompute.policy=unit"};
inline const Overrides kNoPrefetch{"memory.prefetch=0"};
inline const Overrides kSmallChunks{"memory.chunk=4MiB", "memory.prefetch=0"};

// What makes a model a Llama with fewer heads of keys than of queries.
inline const Overrides kLlama{"model.family=llama", "model.kv_heads=2", "model.ffn=160"};
inline const Overrides kSpillingLlama = small_gpt2(4, 4) + kLearning +
                                        Overrides{"model.family=llama", "optimizer.warmup=2",
                                                  "train.accumulate=3", "train.eval_every=2"};
inline Overrides activations(const std::string& tier) {
  return {"memory.place.activation=" + tier};
}

inline Overrides durable(int every) {
  return {"checkpoint.mode=durable", "checkpoint.every=" + std::to_string(every)};
}

// A process that ends after step `stop`, or with the run where that is 0. resume: as the options'.
inline train::TrainingOptions until(std::int64_t stop, const std::string& resume = {}) {
  train::TrainingOptions options;
  if (stop > 0) options.stop_at_step = stop;
  options.resume = resume;
  return options;
}

inline std::string bytes_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// `key` of every step's event; nothing where steps do not report it.
template <class Value>
std::vector<Value> of_each_step(const TrainingRecord& run, const char* key) {
  std::vector<Value> values;
  for (const train::RunEvent& step : run.steps) {
    if (step.contains(key)) values.push_back(step.at(key).get<Value>());
  }
  return values;
}

inline void expect_same_bits(const TrainingRecord& run, const TrainingRecord& reference) {
  EXPECT_EQ(run.end, train::TrainingEnd::kDone);
  EXPECT_FALSE(reference.losses.empty());
  EXPECT_EQ(run.losses, reference.losses);
  EXPECT_EQ(run.norms, reference.norms);
  if (!reference.eval_losses.empty()) {
    EXPECT_EQ(run.eval_losses, reference.eval_losses);
  }
  EXPECT_EQ(of_each_step<std::int64_t>(run, "loss_scale"),
            of_each_step<std::int64_t>(reference, "loss_scale"));
  EXPECT_EQ(of_each_step<bool>(run, "overflow"), of_each_step<bool>(reference, "overflow"));
  EXPECT_NE(reference.weights_hash, "");
  EXPECT_EQ(run.weights_hash, reference.weights_hash);
}

// Runs the parts of a case one after another. Returns their reports, as if one process had run.
inline TrainingRecord run_in_parts(const TrainingBench& bench, const Overrides& model,
                                   const Case& one, StopBy stop_by = StopBy::kStep) {
  std::atomic<int> signal{0};
  train::TrainingOptions options;
  if (stop_by == StopBy::kSignal) options.stop_signal = &signal;
  TrainingRecord whole;
  for (const Part& part : one.parts) {
    if (stop_by == StopBy::kStep) {
      options.stop_at_step.reset();
      if (part.stop > 0) options.stop_at_step = part.stop;
    }
    signal = 0;
    const TrainingRecord record = TrainingBench::run(
        bench.config(one.name, model + part.overrides), options,
        [&](const train::StepReport& report) { signal = report.step == part.stop ? 15 : 0; });
    whole.append(record);
    if (part.stop > 0) {
      EXPECT_EQ(whole.losses.size(), static_cast<std::size_t>(part.stop));
      if (stop_by == StopBy::kSignal) {
        EXPECT_EQ(whole.end, train::TrainingEnd::kInterrupted);
      }
    }
    options.resume = bench.run_directory(one.name);
  }
  return whole;
}

// False where a configuration asks for io_uring and this machine has none; the storage suite
// reports that.
inline bool runs_here(const config::Config& config) {
  return config.memory.storage_engine != config::Config::StorageEngineKind::kIoUring ||
         offload::io_uring_unavailable_reason().empty();
}

// A sanitizer's run takes the first case of a row and each third one, other ones in other rows.
inline bool in_sample(const std::string& row, std::size_t position) {
  return !samples_sweeps() || position == 0 || (position + row.size()) % 3 == 0;
}

// The planner searches for what every other case leaves open.
inline Overrides open_choices(std::size_t position) {
  return position % 2 == 0 ? kChosenByHand : Overrides{};
}

inline void expect_row(const Row& row) {
  const TrainingBench bench;
  const config::Config config = bench.config("reference", row.model + row.reference);
  const TrainingRecord reference = TrainingBench::run(config);
  ASSERT_EQ(reference.losses.size(), static_cast<std::size_t>(config.train.steps));
  if (config.train.eval_every > 0) {
    EXPECT_EQ(reference.eval_losses.size(),
              static_cast<std::size_t>(config.train.steps / config.train.eval_every));
  }
  if (row.check_reference) row.check_reference(reference);
  for (std::size_t i = 0; i < row.cases.size(); ++i) {
    const Case& one = row.cases[i];
    if (!in_sample(row.name, i)) continue;
    SCOPED_TRACE(one.name);
    const Overrides model = open_choices(i) + row.model;
    if (!runs_here(bench.config(one.name, model + one.parts.front().overrides))) continue;
    const TrainingRecord run = run_in_parts(bench, model, one, row.stop_by);
    expect_same_bits(run, reference);
    EXPECT_EQ(run.done.at("peak_bytes"), run.plan.at("peak_bytes"));
    EXPECT_EQ(run.done.at("measured_peak_bytes").at("storage"),
              run.plan.at("peak_bytes").at("storage"));
    if (row.check) row.check(one, run);
  }
}

}  // namespace sluice::testing
