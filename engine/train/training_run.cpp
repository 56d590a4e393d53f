#include "engine/train/training_run.hpp"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/json_text.hpp"
#include "base/log.hpp"
#include "base/posix_file.hpp"
#include "base/units.hpp"
#include "engine/checkpoint/saved_parts.hpp"
#include "engine/config/schema.hpp"
#include "engine/config/shapes.hpp"
#include "engine/data/dataset_options.hpp"
#include "engine/planner/machine_check.hpp"
#include "engine/run/run_files.hpp"
#include "engine/run/stale_files.hpp"
#include "engine/train/plan/model_flops.hpp"
#include "engine/train/plan/plan_outlook.hpp"
#include "engine/train/plan/prepare.hpp"
#include "engine/train/trainer.hpp"
#include "engine/train/world_checks.hpp"
#include "engine/train/world_events.hpp"
#include "engine/train/world_plan.hpp"

namespace sluice::train {
namespace {

namespace fs = std::filesystem;

// Bytes that the run will add to checkpoint.dir at most: checkpoints (the newest two are kept while
// a third is written) and the exported weights, which may lie on the same file system.
std::uint64_t saved_bytes(const config::Config& config, const planner::Plan& plan, bool resumes) {
  const bool saves_last = config.checkpoint.final;
  if (!saves_last && config.checkpoint.every == 0 && !plan.options.durable) return 0;
  // The state on storage is the checkpoint.
  if (plan.options.durable) return plan.need.fixed.log_bytes + plan.export_file_bytes;
  const std::uint64_t most_saves =
      config.checkpoint.every > 0 ? ceil_div(static_cast<std::uint64_t>(config.train.steps),
                                             static_cast<std::uint64_t>(config.checkpoint.every))
                                  : 1;
  // Older checkpoints make room as new ones come.
  const std::uint64_t kept = resumes ? 1 : 0;
  const auto checkpoints = std::clamp<std::uint64_t>(most_saves, 1, 3 - kept);
  return checkpoints * plan.checkpoint_file_bytes + plan.export_file_bytes;
}

void write_plan(Prepared& prepared, run::RunFiles& files) {
  const RunEvent event = prepared_event(prepared);
  files.text("plan.json", json_text(event) + "\n");
  TraceRecorder trace;
  schedule::simulate(prepared.plan()->training(), prepared.simulation_model(), &trace);
  files.text("plan_trace.json", trace.to_json());
}

// Adds the bytes of stale files of runs in log.dir to the refusal of a disk without room.
[[noreturn]] void refuse_without_room(const planner::NoRoom& error, const std::string& log_dir) {
  std::uint64_t bytes = 0;
  try {
    for (const run::StaleRun& run : run::find_stale_files({log_dir}, false)) {
      for (const run::StaleFile& file : run.files) bytes += file.removable ? file.bytes : 0;
    }
  } catch (const Error&) {
    bytes = 0;  // the refusal matters, not the hint
  }
  if (bytes == 0) throw error;
  throw InputError(std::string(error.what()) + "; `sluice doctor --clean " + log_dir +
                   " --yes` frees " + format_bytes(bytes) + " that killed runs left");
}

// A raised number of steps stretches the cosine over all of them, those that are done included.
void note_steps(const checkpoint::CheckpointManifest& manifest, const config::Config& config) {
  const auto before = manifest.settings.find("train.steps");
  const std::string now = std::to_string(config.train.steps);
  if (before == manifest.settings.end() || before->second == now) return;
  log(LogLevel::kInfo, "train.steps was " + before->second + " and is " + now +
                           " now: from here on the learning rate follows the schedule over " + now +
                           " steps");
}

// "auto" continues with the micro-batches of the earlier run: others would round otherwise.
void keep_split(config::Config& config, const run::ResumePoint& found) {
  if (config.train.micro_batch != config::Config::kAutoCount) return;
  const auto count = [&](const char* path) {
    const auto& settings = found.manifest().settings;
    const auto setting = settings.find(path);
    const config::ConfigKey& key = *config::find_config_key(path);
    const auto value =
        setting == settings.end() ? std::nullopt : config::value_from_text(key, setting->second);
    if (!value || !std::holds_alternative<std::int64_t>(*value) || !config::in_range(key, *value)) {
      throw InputError(found.where() + ": does not say its " + path);
    }
    return std::get<std::int64_t>(*value);
  };
  const std::int64_t micro_batch = count("train.micro_batch");
  const std::int64_t accumulate = count("train.accumulate");
  if (micro_batch * accumulate != config.train.batch) {
    throw InputError(found.where() + ": was made with train.micro_batch * train.accumulate = " +
                     std::to_string(micro_batch) + " * " + std::to_string(accumulate) +
                     " samples a step, and train.batch is " + std::to_string(config.train.batch) +
                     " now");
  }
  config.train.micro_batch = micro_batch;
  config.train.accumulate = accumulate;
}

// With delayed updates a run can end only where nothing is in flight.
void check_last_step(const config::Config& config, std::optional<std::int64_t> stop_at_step) {
  if (!stop_at_step || *stop_at_step % config.parallel.updates == 0) return;
  throw InputError(
      "--steps is " + std::to_string(*stop_at_step) +
      " and must be a multiple of parallel.updates = " + std::to_string(config.parallel.updates) +
      ", the steps between two points at which nothing is in flight");
}

// Plans the run and checks that the disks have room for it. Returns nothing if the plan is refused;
// an event gives the reason. ranks: those of this machine, of which each takes as much.
std::optional<Prepared> prepare_run(const config::Config& config, bool resumes, int ranks,
                                    const DeviceShare& share, const EventSink& events) {
  try {
    Prepared prepared =
        prepare(config, planner::load_profile_or_default(planner::default_profile_path()),
                PlannedMachine::kThis, ranks, share);
    if (prepared.refusal() != nullptr) {
      events(refused_event(*prepared.refusal()));
      return std::nullopt;
    }
    const planner::Plan& plan = *prepared.plan();
    const std::uint64_t stored_bytes = plan.need.storage_bytes * static_cast<std::uint64_t>(ranks);
    planner::check_storage_paths(prepared.config, stored_bytes);
    planner::check_checkpoint_room(prepared.config, saved_bytes(prepared.config, plan, resumes),
                                   stored_bytes);
    return prepared;
  } catch (const planner::NoRoom& error) {
    refuse_without_room(error, fs::path(config.log.dir).parent_path().string());
  }
}

// Throws InputError if the run cannot continue from `found`.
void check_found(const run::ResumePoint& found, const Prepared& prepared, const data::Dataset& data,
                 bool accept_other_arithmetic) {
  const planner::Plan& plan = std::get<planner::Plan>(prepared.result);
  run::check_resume_point(found, prepared.config, prepared.model, data.fingerprint(),
                          Session::homes(plan.schedules[schedule::StepKind::kEvaluation]),
                          plan.is_alone());
  if (!accept_other_arithmetic) {
    checkpoint::check_arithmetic(found.manifest(), found.where(),
                                 prepared.backend.device_kernels->arithmetic());
  }
  note_steps(found.manifest(), prepared.config);
}

// The plan event of a run that begins: its directory, and the state that it continues.
RunEvent begin_event(const Prepared& prepared, const RunId& run,
                     const std::optional<run::ResumePoint>& found, Trainer& trainer) {
  const config::Config& config = prepared.config;
  const planner::Plan& plan = std::get<planner::Plan>(prepared.result);
  RunEvent event = prepared_event(prepared);
  event["run_id"] = run.hex();
  const fs::path directory = normal_path(config.log.dir);
  event["log_dir"] = directory.parent_path().string();
  event["run_dir"] = directory.string();
  event["checkpoint_dir"] = normal_path(config.checkpoint.dir).string();
  if (found && !found->manifest().run_id.empty()) {
    event["resumed_run_id"] = found->manifest().run_id;
  }
  if (plan.need.storage_bytes > 0 && config.memory.storage_paths.size() > 1) {
    event["storage_shares"] = trainer.storage_shares();
  }
  return event;
}

}  // namespace

TrainingEnd resume_newest(const std::string& path,
                          const std::function<TrainingEnd(const std::string& run)>& resume,
                          World* world, const std::string& launch) {
  World alone;
  World& ranks = world == nullptr ? alone : *world;
  std::vector<std::string> runs;
  ranks.agree("the runs to resume", [&] {
    try {
      runs = run::runs_to_resume(path);
    } catch (const InputError& error) {
      throw run::NoState(error.what());
    }
    if (launch.empty()) return;
    std::erase_if(runs, [&](const std::string& run) { return run::launch_of(run) != launch; });
    if (runs.empty()) throw run::NoState("--resume: no run in '" + path + "' is of this launch");
  });
  std::string first;
  for (const std::string& run : runs) {
    try {
      return resume(run);
    } catch (const run::NoState& error) {
      if (first.empty()) first = error.what();
      if (runs.size() > 1 && ranks.is_first())
        log(LogLevel::kWarning, "run passed over: " + std::string(error.what()));
    }
  }
  throw run::NoState(first);
}

namespace {

// A start in the order in which its parts are made. Alone, nothing is agreed; among ranks each part
// either succeeds on all, or ends the start on all.
class Start {
 public:
  Start(const config::Config& asked, const TrainingOptions& options, const EventSink& events,
        const StepObserver& observe, World& world)
      : options_(options),
        events_(events),
        observe_(observe),
        world_(world),
        given_(asked),
        placed_(asked) {}

  TrainingEnd run() {
    check_ranks_and_data();
    if (!plan()) return TrainingEnd::kRefused;
    // From here on things are made. A new run has touched nothing so far.
    if (!resumes()) touch();
    claim_files();
    make_trainer();
    begin();
    trainer_->start(found_);
    return trainer_->run();
  }

 private:
  bool resumes() const { return !options_.resume.empty(); }
  void touch() const {
    if (options_.before_files) options_.before_files();
  }
  config::Config& config() { return prepared_->config; }

  void check_ranks_and_data();
  void place();
  bool plan();
  void claim_files();
  void take_files_of_first(const std::string& message);
  // agree() for a part that fails after the ranks have files.
  void agree_with_files(const std::string& name, const std::function<void()>& body);
  void make_trainer();
  void begin();

  const TrainingOptions& options_;
  const EventSink& events_;
  const StepObserver& observe_;
  World& world_;
  RunId id_ = make_run_id();
  config::Config given_, placed_;  // as its user wrote it, and with the paths of the run
  std::optional<run::RunFiles> files_;
  std::optional<run::ResumePoint> found_;
  std::optional<data::Dataset> data_;
  std::optional<Prepared> prepared_;
  std::optional<Trainer> trainer_;
};

void Start::check_ranks_and_data() {
  world_.agree("the configuration", [&] {
    config::check_supported(given_);
    check_ranks(given_, world_.size());
    check_last_step(given_, options_.stop_at_step);
  });
  if (!world_.alone()) world_.check_equal("the start", facts_of_start(given_), kOneStart);
  world_.connect(given_.parallel.pipeline > 1, given_.parallel.inner_ranks() > 1);
  if (resumes()) touch();
  world_.agree("the directories", [&] {
    if (world_.is_first()) place();
  });
  world_.agree("the data", [&] { data_.emplace(data::dataset_options(given_)); });
  world_.check_equal("the fingerprint of the data",
                     {{"data.paths with the fingerprint", data_->fingerprint()}},
                     "give all ranks the same data");
}

void Start::place() {
  if (resumes()) {
    files_.emplace(placed_, given_, id_, options_.resume);
    planner::check_run_directories(placed_);
    found_ = run::find_resume_point(placed_);
  } else {
    planner::check_run_directories(given_);
    run::place_new_run(placed_, given_, run::next_run_directory(given_.log.dir), id_);
  }
  if (found_) keep_split(placed_, *found_);
}

// Returns false if the plan is refused.
bool Start::plan() {
  const bool divides = share_processors(world_);
  const DeviceShare share = share_gpus(world_, given_);
  world_.agree("the plan", [&] {
    if (!world_.is_first()) return;
    if (!world_.alone()) settle_for_ranks(world_, divides, share, placed_);
    prepared_ = prepare_run(placed_, resumes(), world_.ranks_on_node(), share, events_);
  });
  if (!world_.alone()) {
    const std::string message =
        world_.share("the plan", prepared_ ? plan_message(*prepared_) : std::string());
    if (message.empty()) return false;
    world_.agree("the steps of the ranks", [&] {
      if (!world_.is_first()) prepared_.emplace(prepare_rank(message, world_.rank(), share));
    });
  }
  if (!prepared_) return false;
  // The run's own configuration names the micro-batches that were chosen.
  given_.train.micro_batch = config().train.micro_batch;
  given_.train.accumulate = config().train.accumulate;
  data_->divide(given_.train.micro_batch, given_.train.accumulate);
  world_.agree("the state to resume", [&] {
    if (found_) check_found(*found_, *prepared_, *data_, options_.accept_other_arithmetic);
  });
  check_plans(world_, *prepared_);
  return true;
}

// The first rank makes the run's directory; the others learn its name, and the run's.
void Start::claim_files() {
  const planner::Plan& plan = *prepared_->plan();
  const bool stores = plan.need.storage_bytes > 0 || plan.options.durable;
  world_.agree("the run's files", [&] {
    if (!world_.is_first()) return;
    if (!files_) files_.emplace(config(), given_, id_);
    if (stores) files_->make_storage(config());
  });
  if (world_.alone()) return;
  const std::string message =
      world_.share("the run", id_.hex() + '\n' + config::config_to_toml(config()) + '\0' +
                                  (found_ ? run::resume_point_text(*found_) : std::string()));
  agree_with_files("the files of the ranks", [&] {
    if (world_.is_first()) return;
    take_files_of_first(message);
    if (stores) files_->make_storage(config());
  });
}

void Start::take_files_of_first(const std::string& message) {
  const std::size_t line = message.find('\n'), end = message.find('\0');
  SLUICE_CHECK(line != std::string::npos && end != std::string::npos);
  id_ = parse_run_id(message.substr(0, line)).value();
  const config::Config first =
      config::parse_config(message.substr(line + 1, end - line - 1), "the configuration of rank 0");
  config().log.dir = first.log.dir;
  config().checkpoint.dir = first.checkpoint.dir;
  config().memory.storage_paths = first.memory.storage_paths;
  files_.emplace(config(), first.log.dir, world_.rank());
  const std::string found = message.substr(end + 1);
  if (found.empty()) return;
  found_ = run::open_resume_point(found, first.memory.storage_paths);
  if (!found_->durable) return;
  const planner::Plan& plan = *prepared_->plan();
  checkpoint::SavedParts(*found_->durable, prepared_->model)
      .check(Session::homes(plan.schedules[schedule::StepKind::kEvaluation]), plan.is_alone());
}

void Start::agree_with_files(const std::string& name, const std::function<void()>& body) {
  try {
    world_.agree(name, body);
  } catch (const JobError&) {
    // The first rank removes the directories above those of the others.
    trainer_.reset();
    if (!world_.is_first()) files_.reset();
    world_.gather("the removal of files", {});
    throw;
  }
}

void Start::make_trainer() {
  agree_with_files("the memory of the ranks", [&] {
    trainer_.emplace(TrainingContext{.config = config(),
                                     .options = options_,
                                     .data = *data_,
                                     .model = prepared_->model,
                                     .plan = *prepared_->plan(),
                                     .backend = prepared_->backend,
                                     .files = *files_,
                                     .run_id = id_,
                                     .events = events_,
                                     .observe = observe_,
                                     .world = world_});
  });
  if (config().parallel.transport == config::Config::Transport::kNccl && !world_.alone()) {
    agree_with_files("the links of the GPUs", [&] {
      trainer_->connect_gpus([&](device::Device& device, device::Stream& stream) {
        return world_.connect_gpus(find_gpu_of(world_.local_rank()), device, stream);
      });
    });
  }
  trainer_->set_peak_flops(measured_peak_flops(prepared_->hardware, config()));
}

void Start::begin() {
  files_->begin(given_);
  if (world_.is_first() && !options_.launch.empty()) {
    files_->text(run::kLaunchFile, options_.launch + "\n");
  }
  RunEvent event = begin_event(*prepared_, id_, found_, *trainer_);
  add_places(event, world_);
  files_->event(event);
  if (world_.is_first()) events_(event);
  write_plan(*prepared_, *files_);
}

}  // namespace

TrainingEnd train(const config::Config& asked, const TrainingOptions& options,
                  const EventSink& events, const StepObserver& observe) {
  World alone;
  World& world = options.world == nullptr ? alone : *options.world;
  const auto run = [&] { return Start(asked, options, events, observe, world).run(); };
  if (world.alone()) return run();
  try {
    const TrainingEnd end = run();
    world.finish();
    return end;
  } catch (const JobError&) {
    throw;
  } catch (const run::NoState&) {
    throw;
  } catch (const std::exception& error) {
    throw world.explain(error);
  }
}

}  // namespace sluice::train
