#include "engine/train/training_run.hpp"

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/units.hpp"
#include "engine/planner/cost_model.hpp"
#include "engine/planner/machine_check.hpp"
#include "engine/train/lr_schedule.hpp"
#include "engine/train/posix_file.hpp"
#include "engine/train/run_lock.hpp"
#include "engine/train/session.hpp"
#include "kernels/host/parallel.hpp"
#include "offload/storage_file.hpp"

namespace sluice {
namespace {

namespace fs = std::filesystem;

// Bytes that the run will add to checkpoint.dir at most: checkpoints (the newest two are kept while
// a third is written) and the exported weights, which may lie on the same file system.
std::uint64_t saved_bytes(const Config& config, const Plan& plan, bool resumes) {
  const auto bytes = [&](StateKind kind) {
    return plan.kind_bytes[static_cast<std::size_t>(kind)];
  };
  const std::uint64_t weights = bytes(StateKind::kWeight);
  // The state on storage is the checkpoint.
  if (plan.options.durable) return plan.need.log_bytes + weights;
  std::uint64_t checkpoint = weights;
  for (const StateKind kind : kOptimizerKinds) checkpoint += bytes(kind);
  const std::uint64_t most_saves =
      config.checkpoint.every > 0 ? ceil_div(static_cast<std::uint64_t>(config.train.steps),
                                             static_cast<std::uint64_t>(config.checkpoint.every))
                                  : 1;
  // What an earlier run left makes room as the new ones come.
  const std::uint64_t kept = resumes ? 1 : 0;
  const auto checkpoints = std::clamp<std::uint64_t>(most_saves, 1, 3 - kept);
  return checkpoints * checkpoint + weights;
}

void write_text(const fs::path& path, const std::string& text) {
  // Beside it, then renamed: what was there stays whole until the new text is.
  const std::string temporary = path.string() + ".tmp";
  PosixFile file = PosixFile::create(temporary);
  file.write_all(0, std::as_bytes(std::span(text.data(), text.size())));
  rename_durably(temporary, path.string());
}

DatasetOptions dataset_options(const Config& config) {
  DatasetOptions options;
  options.paths = config.data.paths;
  options.format = config.data.format;
  options.vocab = config.model.vocab;
  options.eval_fraction = config.data.eval_fraction;
  options.seq = config.train.seq;
  options.micro_batch = config.train.micro_batch;
  options.accumulate = config.train.accumulate;
  options.seed = config.train.seed;
  return options;
}

LrSchedule lr_schedule(const Config& config) {
  const auto shape = config.optimizer.schedule == Config::LrSchedule::kCosine
                         ? LrSchedule::Shape::kCosine
                         : LrSchedule::Shape::kConstant;
  return {shape, config.optimizer.lr, config.optimizer.warmup, config.train.steps};
}

// With what is above it. durable: the names are on the disk when it returns.
void make_directory(const fs::path& path, bool durable) {
  std::vector<fs::path> made;
  fs::path at = fs::absolute(path).lexically_normal();
  if (!at.has_filename()) at = at.parent_path();
  for (std::error_code error; !fs::exists(at, error) && at.has_relative_path();) {
    made.push_back(at);
    at = at.parent_path();
  }
  try {
    make_directories(path.string());
  } catch (const IoError& error) {
    throw InputError("'" + path.string() +
                     "' cannot be made: " + std::generic_category().message(error.error_number));
  }
  for (const fs::path& name : made) {
    if (durable) sync_directory_of(name.string());
  }
}

// A run that was killed may have left half a line: the next event must not be joined to it.
void cut_unfinished_line(const fs::path& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return;
  auto bytes = static_cast<std::int64_t>(file.tellg());
  const std::int64_t size = bytes;
  for (char last = 0; bytes > 0; --bytes) {
    file.seekg(bytes - 1);
    if (!file.get(last) || last == '\n') break;
  }
  file.close();
  if (bytes < size) fs::resize_file(path, static_cast<std::uintmax_t>(bytes));
}

// The run directory: what stands in it, and who writes what. An earlier run's checkpoints are never
// overwritten: a fresh start moves them aside.
class RunFiles {
 public:
  // Makes and locks the directories; what an earlier run left in them stands until begin().
  RunFiles(const Config& config, const RunId& run, bool uses_storage)
      : directory_(made(config.log.dir, is_durable(config))),
        lock_("log.dir", config.log.dir, run) {
    const bool durable = is_durable(config);
    if (uses_storage) {
      for (const std::string& path : config.memory.storage_paths) make_directory(path, durable);
    }
    make_directory(config.checkpoint.dir, durable);
    if (!fs::equivalent(config.checkpoint.dir, config.log.dir)) {
      checkpoint_lock_.emplace("checkpoint.dir", config.checkpoint.dir, run);
    }
  }

  // own_log: of a durable run, which has made it already.
  void begin(const Config& config, bool fresh, const std::string& own_log) {
    const fs::path events = directory_ / "events.jsonl";
    if (fresh) {
      remove_logs_without_commit(config.checkpoint.dir, own_log, config.memory.storage_paths);
      set_aside_checkpoints(config.checkpoint.dir, own_log);
      PosixFile::create(events.string());  // with its mode
    } else {
      cut_unfinished_line(events);
    }
    write_text(directory_ / "config.toml", config_to_toml(config));
    events_.open(events, std::ios::out | std::ios::app);
    if (!events_) throw IoError("open", events.string(), 0, 0, errno);
  }

  void event(const RunEvent& event) {
    events_ << event.dump() << '\n' << std::flush;
    if (!events_) throw IoError("write", path("events.jsonl"), 0, 0, errno);
  }
  void text(const char* name, const std::string& text) { write_text(directory_ / name, text); }
  std::string path(const char* name) const { return (directory_ / name).string(); }

 private:
  static bool is_durable(const Config& config) {
    return config.checkpoint.mode == Config::CheckpointMode::kDurable;
  }
  static const std::string& made(const std::string& directory, bool durable) {
    make_directory(directory, durable);
    return directory;
  }

  fs::path directory_;
  RunLock lock_;
  std::optional<RunLock> checkpoint_lock_;
  std::ofstream events_;
};

// Where a run goes on from: a durable run's commit, or a checkpoint of files.
struct ResumePoint {
  std::optional<DurableFound> durable;
  std::optional<CheckpointFound> checkpoint;

  const CheckpointManifest& manifest() const {
    return durable ? durable->manifest : checkpoint->manifest;
  }
  const std::string& where() const { return durable ? durable->log : checkpoint->directory; }
};

// The newer of the two. Throws InputError where there is neither, with the reason of what failed.
ResumePoint find_resume_point(const Config& config) {
  ResumePoint point;
  std::vector<std::string> failures;
  point.durable = find_durable(config.checkpoint.dir, config.memory.storage_paths, failures);
  try {
    point.checkpoint = find_checkpoint(config.checkpoint.dir);
  } catch (const InputError&) {
    if (point.durable) return point;
    if (!failures.empty()) throw InputError(failures.front());
    throw;
  }
  for (const std::string& failure : failures) {
    log(LogLevel::kWarning, "commit passed over: " + failure);
  }
  if (point.durable && point.durable->manifest.step < point.checkpoint->manifest.step) {
    point.durable.reset();
  }
  return point;
}

class Trainer {
 public:
  Trainer(const Config& config, const TrainingOptions& options, const Dataset& data,
          const Model& model, const Plan& plan, Kernels& device_kernels, Kernels& host_kernels,
          RunFiles& files, const RunId& run, const EventSink& events, const StepObserver& observe)
      : config_(config),
        options_(options),
        data_(data),
        files_(files),
        run_id_(run),
        events_(events),
        observe_(observe),
        arithmetic_(device_kernels.arithmetic()),
        session_(config, model, plan, device_kernels, host_kernels, options.wrap_storage, run),
        lr_(lr_schedule(config)) {}

  void start(const std::optional<ResumePoint>& found) {
    if (found) {
      if (found->durable) {
        session_.load(*found->durable);
      } else {
        load_checkpoint(*found->checkpoint, session_.state());
      }
      const CheckpointManifest& manifest = found->manifest();
      step_ = manifest.step;
      if (manifest.loss_scale) session_.loss_scaler().restore(*manifest.loss_scale);
      emit({{"event", "resume"}, {"step", step_}, {"dir", found->where()}});
    } else {
      session_.state().initialize(config_.train.seed);
    }
    first_step_ = step_;
    saved_step_ = step_;
  }

  std::string state_log() const { return session_.state_log(); }

  TrainingEnd run() {
    const std::int64_t last = options_.stop_at_step.value_or(config_.train.steps);
    while (step_ < last) {
      one_step(last);
      const bool stop = stop_asked();
      const bool due = config_.checkpoint.every > 0 && step_ % config_.checkpoint.every == 0;
      const bool overflows = session_.loss_scaler().exhausted();
      const bool goes_on = step_ < last && !stop && !overflows;
      if (due && goes_on && durable()) {
        commits_next_ = true;  // while the next step computes
      } else if (stop || due || overflows) {
        save();
      }
      if (overflows) stop_overflowing();
      if (stop && step_ < last) return TrainingEnd::kInterrupted;
    }
    finish();
    return TrainingEnd::kDone;
  }

 private:
  bool durable() const { return config_.checkpoint.mode == Config::CheckpointMode::kDurable; }
  bool scales_loss() const { return config_.train.precision == Config::Precision::kFP16; }

  // All ranks stop at the same step: any one's signal stops all.
  bool stop_asked() {
    std::int32_t asked = options_.stop_signal != nullptr && options_.stop_signal->load() != 0;
    session_.communicator().all_reduce(&asked, 1, DType::kI32);
    return asked != 0;
  }

  void emit(const RunEvent& event) {
    files_.event(event);
    events_(event);
  }

  void one_step(std::int64_t last) {
    // The third step is steady; a shorter run is traced at its last.
    const bool traced = step_ - first_step_ == std::min<std::int64_t>(2, last - first_step_ - 1);
    TraceRecorder trace;
    const double lr = lr_.lr_at(step_);
    const CheckpointManifest found = manifest();
    const StepOutcome outcome = session_.train_step(
        step_, lr,
        [&](std::int64_t mb, std::int32_t* tokens, std::int32_t* targets) {
          data_.fill(step_, mb, tokens, targets);
        },
        traced ? &trace : nullptr, commits_next_ ? &found : nullptr);
    if (std::exchange(commits_next_, false)) note_commit();
    ++step_;
    if (traced) files_.text("trace.json", trace.to_json());
    add(outcome.moved);
    report(outcome, lr, last);
    const bool evaluates = config_.train.eval_every > 0 && step_ % config_.train.eval_every == 0;
    if (evaluates && data_.eval_batches() > 0) evaluate();
  }

  void note_overflow(const StepOutcome& outcome) {
    overflowed_tensor_ = outcome.overflowed_tensor;
    overflowed_scale_ = outcome.loss_scale;
    log(LogLevel::kWarning, "step " + std::to_string(step_) + ": the gradient of '" +
                                overflowed_tensor_ + "' overflowed fp16 at loss scale " +
                                scale_text(outcome.loss_scale) +
                                "; the update is skipped, the scale is now " +
                                scale_text(session_.loss_scaler().scale()));
  }

  // Everything is as the last good step left it, and saved so.
  [[noreturn]] void stop_overflowing() {
    throw Error("training stopped at step " + std::to_string(step_) + ": gradients overflowed " +
                "fp16 in " + std::to_string(session_.loss_scaler().state().overflows) +
                " steps in a row, the last time that of '" + overflowed_tensor_ +
                "' at loss scale " + scale_text(overflowed_scale_) +
                "; begin anew with a lower optimizer.lr or train.loss_scale, or with "
                "train.precision = \"bf16\"");
  }

  static std::string scale_text(double scale) {
    return std::to_string(static_cast<std::int64_t>(scale));
  }

  void report(const StepOutcome& outcome, double lr, std::int64_t last) {
    StepReport report;
    report.step = step_;
    report.last_step = last;
    report.loss = outcome.loss;
    report.grad_norm = outcome.grad_norm;
    report.lr = lr;
    report.step_time_s = outcome.seconds;
    report.tokens_per_s = static_cast<double>(config_.train.seq * config_.train.micro_batch *
                                              config_.train.accumulate) /
                          outcome.seconds;
    report.stalled_fraction = outcome.stalled_fraction;
    report.moved = outcome.moved;
    report.overflow = outcome.overflow;
    const bool logged = config_.log.every > 0 && (step_ % config_.log.every == 0 || step_ == last ||
                                                  step_ == first_step_ + 1);
    if (logged || report.overflow) {
      RunEvent event{{"event", "step"},
                     {"step", report.step},
                     {"loss", report.loss},
                     {"grad_norm", report.grad_norm},
                     {"lr", report.lr},
                     {"tokens_per_s", report.tokens_per_s},
                     {"step_time_s", report.step_time_s},
                     {"stalled_fraction", report.stalled_fraction},
                     {"tag_time_s", outcome.tag_seconds},
                     {"bytes_moved", link_bytes_json(report.moved)}};
      if (scales_loss()) {
        event["loss_scale"] = static_cast<std::int64_t>(outcome.loss_scale);
        event["overflow"] = outcome.overflow;
        if (outcome.overflow) event["tensor"] = outcome.overflowed_tensor;
      }
      emit(event);
    }
    if (outcome.overflow) note_overflow(outcome);
    observe_(report);
  }

  void evaluate() {
    const LinkBytes before = session_.moved_bytes();
    double sum = 0;
    const std::int64_t batches = data_.eval_batches();
    std::int64_t done = 0;
    for (; done < batches && !stop_asked(); ++done) {
      sum += session_.evaluate([&](std::int64_t, std::int32_t* tokens, std::int32_t* targets) {
        data_.fill_eval(done, tokens, targets);
      });
    }
    const LinkBytes after = session_.moved_bytes();
    add({after.upload - before.upload, after.download - before.download,
         after.storage_read - before.storage_read, after.storage_write - before.storage_write});
    if (done < batches) return;  // asked to stop: a part of the data is no evaluation
    emit({{"event", "eval"}, {"step", step_}, {"loss", sum / static_cast<double>(batches)}});
  }

  // Counts what it moves as the steps' own.
  void drain() {
    const LinkBytes before = session_.moved_bytes();
    session_.drain();
    const LinkBytes after = session_.moved_bytes();
    add({after.upload - before.upload, after.download - before.download,
         after.storage_read - before.storage_read, after.storage_write - before.storage_write});
  }

  // Of the state as it is between steps.
  CheckpointManifest manifest() {
    CheckpointManifest manifest;
    manifest.step = step_;
    manifest.run_id = run_id_.hex();
    manifest.settings = result_settings(config_);
    manifest.data_fingerprint = data_.fingerprint();
    manifest.arithmetic = arithmetic_;
    manifest.threads = config_.train.threads;
    if (scales_loss()) manifest.loss_scale = session_.loss_scaler().state();
    return manifest;
  }

  void save() {
    if (durable()) {
      add(session_.commit(manifest()));
      return note_commit();
    }
    drain();
    save_checkpoint(config_.checkpoint.dir, manifest(), session_.state());
    note_saved();
  }

  void note_saved() {
    saved_step_ = step_;
    emit({{"event", "checkpoint"}, {"step", step_}, {"dir", config_.checkpoint.dir}});
  }

  // What the run went on from is of no more use once it has a commit of its own.
  void note_commit() {
    if (!committed_) {
      retire_other_logs(config_.checkpoint.dir, session_.state_log(), config_.memory.storage_paths);
    }
    committed_ = true;
    note_saved();
  }

  void finish() {
    if (saved_step_ != step_) save();
    drain();
    session_.state().export_weights(files_.path("weights.safetensors"));
    emit({{"event", "done"},
          {"steps", step_},
          {"weights_hash", session_.state().weights_hash()},
          {"peak_bytes", tier_bytes_json(session_.peak_bytes())},
          {"measured_peak_bytes", tier_bytes_json(session_.measured_peak_bytes())},
          {"bytes_moved", link_bytes_json(total_)},
          {"storage_engine", session_.storage_engine_name()},
          {"storage_tags", tags_json()},
          {"arithmetic", arithmetic_}});
  }

  // Of the whole run, state between steps included.
  RunEvent tags_json() {
    const TagCounters tags = session_.tag_counters();
    return {{"hashed_bytes", tags.hashed_bytes},
            {"hash_time_s", tags.hash_seconds},
            {"reread_blocks", tags.reread_blocks}};
  }

  void add(const LinkBytes& moved) {
    total_.upload += moved.upload;
    total_.download += moved.download;
    total_.storage_read += moved.storage_read;
    total_.storage_write += moved.storage_write;
  }

  const Config& config_;
  const TrainingOptions& options_;
  const Dataset& data_;
  RunFiles& files_;
  const RunId run_id_;
  const EventSink& events_;
  const StepObserver& observe_;
  std::string arithmetic_;
  Session session_;
  LrSchedule lr_;
  std::int64_t step_ = 0;          // finished
  std::int64_t saved_step_ = 0;    // of the newest checkpoint
  std::int64_t first_step_ = 0;    // where this process began
  bool commits_next_ = false;      // the next step commits what it finds
  bool committed_ = false;         // this process has
  std::string overflowed_tensor_;  // of the newest overflow
  double overflowed_scale_ = 0;
  LinkBytes total_;
};

void write_plan(const Config& config, const Model& model, const HardwareProfile& hardware,
                const Plan& plan, RunFiles& files) {
  files.text("plan.json", plan_event(plan).dump() + "\n");
  TraceRecorder trace;
  const BatchShape batch = batch_shape(config);
  simulate(plan.training, CostModel(config, model, batch, hardware).simulation_model(), &trace);
  files.text("plan_trace.json", trace.to_json());
}

}  // namespace

void use_run_directory(Config& config, const std::string& directory) {
  if (config.memory.storage_paths == std::vector<std::string>{config.log.dir + "/storage"}) {
    config.memory.storage_paths = {directory + "/storage"};
  }
  if (config.checkpoint.dir == config.log.dir + "/checkpoints") {
    config.checkpoint.dir = directory + "/checkpoints";
  }
  config.log.dir = directory;
}

TrainingEnd train(const Config& given, const TrainingOptions& options, const EventSink& events,
                  const StepObserver& observe) {
  Config written = given;  // config.toml keeps its "auto"
  if (!options.resume.empty()) use_run_directory(written, options.resume);
  Config config = written;
  check_supported(config);
  check_run_directories(config);
  const MachineRoom room = settle_budgets(config);
  const Dataset data(dataset_options(config));
  const Model model(model_shape(config));
  if (config.train.threads == 0) config.train.threads = host::Parallel::default_threads();
  const HostKernelOptions kernel_options{static_cast<int>(config.train.threads), Bf16Gemm::kAuto};
  const std::unique_ptr<Kernels> device_kernels = make_host_kernels(kernel_options);
  const std::unique_ptr<Kernels> host_kernels = make_host_kernels(kernel_options);
  const HardwareProfile hardware = load_profile_or_default(default_profile_path());
  auto planned = make_plan(config, model, *device_kernels, hardware);
  if (auto* refusal = std::get_if<Refusal>(&planned)) {
    keep_possible_suggestions(*refusal, config, room);
    events(refused_event(*refusal));
    return TrainingEnd::kRefused;
  }
  const Plan& plan = std::get<Plan>(planned);
  check_storage_paths(config, plan.need.storage_bytes);
  check_checkpoint_room(config, saved_bytes(config, plan, !options.resume.empty()),
                        plan.need.storage_bytes);
  std::optional<ResumePoint> found;
  if (!options.resume.empty()) {
    found = find_resume_point(config);
    if (found->durable) {
      check_manifest(found->manifest(), found->where(), config, data.fingerprint());
      check_homes(*found->durable, Session::homes(plan.evaluation));
    } else {
      check_checkpoint(*found->checkpoint, config, model, data.fingerprint());
    }
    if (!options.accept_other_arithmetic) {
      check_arithmetic(found->manifest(), found->where(), device_kernels->arithmetic());
    }
  }

  // Nothing has been created or changed up to here; an earlier run's files stand until all memory
  // of this one is there.
  const RunId run = make_run_id();
  RunFiles files(written, run, plan.need.storage_bytes > 0);
  Trainer trainer(config, options, data, model, plan, *device_kernels, *host_kernels, files, run,
                  events, observe);
  files.begin(written, !found, trainer.state_log());
  RunEvent planned_event = plan_event(plan);
  planned_event["run_id"] = run.hex();
  files.event(planned_event);
  events(planned_event);
  write_plan(config, model, hardware, plan, files);
  trainer.start(found);
  return trainer.run();
}

}  // namespace sluice
