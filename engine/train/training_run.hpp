// A training run from configuration to final weights: plan, memory, steps, evaluation, checkpoints.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/checkpoint/checkpoint.hpp"
#include "engine/config/config.hpp"
#include "engine/data/dataset.hpp"
#include "engine/train/plan/events.hpp"
#include "engine/train/world.hpp"

namespace sluice::train {

struct TrainingOptions {
  std::optional<std::int64_t> stop_at_step;  // stop after so many steps in all; the learning-rate
                                             // schedule keeps train.steps
  std::string resume;                        // a run's directory; empty: a new run
  // Resume although this machine's products round otherwise than those of the checkpoint's did.
  bool accept_other_arithmetic = false;
  // Set by a signal handler: finish the step, save, return kInterrupted. May be null.
  const std::atomic<int>* stop_signal = nullptr;
  // Called on every rank before the run's first file or lock is made: while it plans, a new run has
  // nothing to lose, and its process may end at any moment. May be empty.
  std::function<void()> before_files;
  // The ranks of the job that this process belongs to; null: it is alone. A signal to any rank
  // stops all after the same step.
  World* world = nullptr;
  // The token of `sluice launch`, the same in its restarts; the run keeps it (run::kLaunchFile).
  // Empty: no launcher that restarts.
  std::string launch;
  // Faults for tests: wraps the storage engine that the run made.
  std::function<std::unique_ptr<offload::StorageEngine>(std::unique_ptr<offload::StorageEngine>)>
      wrap_storage;
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

// Emits the events plan or refused, step, eval, checkpoint, done. A new run gets a directory of its
// own in config.log.dir (engine/run/run_directory.hpp); a resumed one goes on in its own, wherever
// config.log.dir is. It holds config.toml, plan.json, plan_trace.json, trace.json, events.jsonl and
// weights.safetensors.
// Throws InputError before anything was touched, run::NoState if the run to be resumed holds no
// state that verifies, and Error for a fault at run time.
// Among ranks, every rank calls it with the same configuration. The first rank plans, owns the
// run's directory, emits the events and observes; the others write their events and traces in
// rank-R beneath it. All errors but NoState are JobErrors then.
TrainingEnd train(const config::Config& config, const TrainingOptions& options,
                  const EventSink& events, const StepObserver& observe);

// Resumes the newest run of `path` (a run's directory or a log.dir) with a state that verifies. It
// calls resume(run), and again with the run before if that throws run::NoState. If no run has such
// a state, it throws the reason of the newest run. launch: only runs that it made or resumed;
// empty: all. Among ranks, all call it.
TrainingEnd resume_newest(const std::string& path,
                          const std::function<TrainingEnd(const std::string& run)>& resume,
                          World* world = nullptr, const std::string& launch = {});

}  // namespace sluice::train
