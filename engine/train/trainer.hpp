// The steps of one run: training, evaluation, checkpoints, the final weights; an event for each.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/dataset.hpp"
#include "engine/run/resume_point.hpp"
#include "engine/run/run_files.hpp"
#include "engine/train/lr_schedule.hpp"
#include "engine/train/session.hpp"
#include "engine/train/training_run.hpp"
#include "engine/train/world.hpp"
#include "engine/train/world_events.hpp"

namespace sluice::train {

// The parts of a run that its caller owns. They must outlive the trainer.
struct TrainingContext {
  const config::Config& config;
  const TrainingOptions& options;
  const data::Dataset& data;
  const model::Model& model;
  const planner::Plan& plan;
  const Backend& backend;
  run::RunFiles& files;
  RunId run_id;
  // Only the first rank emits and observes; the others write their events.
  const EventSink& events;
  const StepObserver& observe;
  World& world;
};

class Trainer {
 public:
  // Takes all memory of the run.
  explicit Trainer(const TrainingContext& context);
  // Gives the ranks' GPUs a group of their own (Session::connect_gpus).
  void connect_gpus(const Session::MakeGpuGroup& make) { session_.connect_gpus(make); }
  // Steps report their share of this rate; none: the device's rate was never measured. Call before
  // run().
  void set_peak_flops(std::optional<double> flops_per_s) { rate_.peak_flops = flops_per_s; }
  // State from where a run ended, or from the seed. Throws IoError.
  void start(const std::optional<run::ResumePoint>& found);
  // The log of commits of a durable run.
  std::string state_log() const { return session_.state_log(); }
  const std::vector<std::uint32_t>& storage_shares() { return session_.storage_shares(); }
  // Trains to the last step, or until a signal. Throws Error for a fault; saved state stays. A
  // fault outside the state (a file of the run, the training data) saves the state first; with
  // several ranks data that cannot be read end the job, because the others compute already.
  TrainingEnd run();

 private:
  bool durable() const {
    return context_.config.checkpoint.mode == config::Config::CheckpointMode::kDurable;
  }
  bool scales_loss() const {
    return context_.config.train.precision == config::Config::Precision::kFP16;
  }
  // Whether all ranks stop now: one has a signal, or a fault of its files. They agree on it.
  bool stop_asked();
  // After the last files of the run, which no step follows: throws StopAgreed on all ranks if one
  // of them could not write its own.
  void agree_on_files();
  // Runs `write`, which writes files of this rank. If it fails, all ranks save at the next
  // stop_asked() or agree_on_files(); a rank that is alone throws at once.
  void write_files(const std::function<void()>& write);
  TrainingEnd run_steps();
  TrainingEnd run_among_ranks();
  [[noreturn]] void save_and_stop(const std::string& why);
  void emit(const RunEvent& event);
  // The steps of one schedule: one, but for delayed updates.
  void next_steps(std::int64_t last);
  void count(const StepOutcome& outcome);
  void count_between_steps(const schedule::LinkBytes& moved);
  void note_overflow(const StepOutcome& outcome);
  // Everything is as the last good step left it, and saved so.
  [[noreturn]] void stop_overflowing();
  static std::string scale_text(double scale);
  // commits: the step also made the state durable.
  void report(const StepOutcome& outcome, double lr, std::int64_t last, bool commits);
  MessageCounts message_counts(const collectives::ByteCounts& data,
                               const collectives::ByteCounts& stages,
                               const collectives::ByteCounts& inner) const;
  void evaluate();
  // The loss of the batches first, first + 1, ..., of which each rank computes one.
  std::vector<double> evaluate_round(std::int64_t first, std::int64_t batches);
  // Counts its bytes among those of the steps.
  void drain();
  // The manifest of the state between steps.
  checkpoint::CheckpointManifest manifest();
  void save();
  // The state after `step` is saved.
  void note_saved(std::int64_t step);
  // Removes the commits from which this durable run was resumed: they are of no use once the run
  // has saved its own. Commits that the resume passed over stay, because their owner may need them.
  void retire_earlier();
  void finish();
  // The final weights: weights.safetensors, and the directory that transformers loads. Returns that
  // directory; empty: transformers has no such model.
  std::string export_results();
  // Counters of the whole run; movement of state between steps is included.
  RunEvent tags_json();

  // The rate of the device, and the work of a token.
  struct Rate {
    double flops_per_token = 0;
    std::optional<double> peak_flops = std::nullopt;
  };
  // Sums of this process, without the processes from which it resumed.
  struct Totals {
    schedule::LinkBytes moved;
    schedule::LinkBytes between_steps;  // of these: drains, evaluations and commits of their own
    std::int64_t redone_steps = 0;
    double redo_s = 0;
    double step_s = 0;
  };
  // Faults of this rank's files.
  struct FileFaults {
    bool of_events = false;  // events.jsonl takes no more
    std::string unreported;  // until the ranks agree to stop
  };
  // The newest step whose gradients overflowed.
  struct Overflow {
    std::string tensor;
    double scale = 0;
  };

  const TrainingContext context_;
  const std::string arithmetic_;
  Rate rate_;
  std::string data_fingerprint_;  // as the data were when the run began
  Session session_;
  LrSchedule lr_;
  std::int64_t step_ = 0;        // finished
  std::int64_t saved_step_ = 0;  // of the newest checkpoint
  std::int64_t first_step_ = 0;  // where this process began
  FileFaults faults_;
  bool commits_next_ = false;  // the next step commits the state before it
  bool retired_ = false;       // earlier commits
  std::vector<std::string> passed_over_logs_;
  Overflow overflow_;
  Totals total_;
};

}  // namespace sluice::train
