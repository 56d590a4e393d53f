// A training run from configuration to final weights: plan, memory, steps, evaluation, checkpoints.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine/checkpoint/checkpoint.hpp"
#include "engine/config/config.hpp"
#include "engine/data/dataset.hpp"
#include "engine/train/events.hpp"

namespace sluice::train {

struct TrainingOptions {
  std::optional<std::int64_t> stop_at_step;  // stop after so many steps in all; the learning-rate
                                             // schedule keeps train.steps
  std::string resume;                        // a run directory; empty: train afresh
  // Resume although this machine's products round otherwise than those of the checkpoint's did.
  bool accept_other_arithmetic = false;
  // Set by a signal handler: finish the step, save, return kInterrupted. May be null.
  const std::atomic<int>* stop_signal = nullptr;
  // Faults for tests: wraps the storage engine that the run made.
  std::function<std::unique_ptr<offload::StorageEngine>(std::unique_ptr<offload::StorageEngine>)> wrap_storage;
};

enum class TrainingEnd { kDone, kRefused, kInterrupted };

// The figures of a step for people; reported on the training thread.
struct StepReport {
  std::int64_t step = 0;  // finished, from 1
  std::int64_t last_step = 0;
  double loss = 0, grad_norm = 0, lr = 0, tokens_per_s = 0, step_time_s = 0;
  double stalled_fraction = 0;
  std::optional<double> mfu;  // model_flops.hpp; nothing where the device was never measured
  schedule::LinkBytes moved;
  bool overflow = false;  // fp16: the update was skipped
};
using StepObserver = std::function<void(const StepReport&)>;

// Makes `directory` the run's: log.dir, and with it checkpoint.dir and storage paths that lie below
// that. One that a fresh start set aside has its checkpoints with it, wherever they were, if it has
// any.
void use_run_directory(config::Config& config, const std::string& directory);

// Emits the events plan or refused, step, eval, checkpoint, done. Writes into config.log.dir:
// config.toml, plan.json, plan_trace.json, trace.json, events.jsonl, weights.safetensors.
// Throws InputError before anything was touched; Error for a fault at run time.
TrainingEnd train(const config::Config& config, const TrainingOptions& options, const EventSink& events,
                  const StepObserver& observe);

}  // namespace sluice::train
