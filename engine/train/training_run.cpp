#include "engine/train/training_run.hpp"

#include <algorithm>
#include <filesystem>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/posix_file.hpp"
#include "base/units.hpp"
#include "engine/config/schema.hpp"
#include "engine/config/shapes.hpp"
#include "engine/data/dataset_options.hpp"
#include "engine/planner/machine_check.hpp"
#include "engine/run/run_files.hpp"
#include "engine/run/stale_files.hpp"
#include "engine/train/model_flops.hpp"
#include "engine/train/plan_outlook.hpp"
#include "engine/train/prepare.hpp"
#include "engine/train/trainer.hpp"

namespace sluice::train {
namespace {

namespace fs = std::filesystem;

// Bytes that the run will add to checkpoint.dir at most: checkpoints (the newest two are kept while
// a third is written) and the exported weights, which may lie on the same file system.
std::uint64_t saved_bytes(const config::Config& config, const planner::Plan& plan, bool resumes) {
  const bool saves_last = config.checkpoint.final;
  if (!saves_last && config.checkpoint.every == 0 && !plan.options.durable) return 0;
  // The state on storage is the checkpoint.
  if (plan.options.durable) return plan.need.log_bytes + plan.export_file_bytes;
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
  files.text("plan.json", event.dump() + "\n");
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

// Plans the run and checks that the disks have room for it. Returns nothing if the plan is refused;
// an event gives the reason.
std::optional<Prepared> prepare_run(const config::Config& config, bool resumes,
                                    const EventSink& events) {
  try {
    Prepared prepared =
        prepare(config, planner::load_profile_or_default(planner::default_profile_path()),
                PlannedMachine::kThis);
    if (prepared.refusal() != nullptr) {
      events(refused_event(*prepared.refusal()));
      return std::nullopt;
    }
    const planner::Plan& plan = *prepared.plan();
    planner::check_storage_paths(prepared.config, plan.need.storage_bytes);
    planner::check_checkpoint_room(prepared.config, saved_bytes(prepared.config, plan, resumes),
                                   plan.need.storage_bytes);
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
                          Session::homes(plan.schedules[schedule::StepKind::kEvaluation]));
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
                          const std::function<TrainingEnd(const std::string& run)>& resume) {
  const std::vector<std::string> runs = run::runs_to_resume(path);
  std::string first;
  for (const std::string& run : runs) {
    try {
      return resume(run);
    } catch (const run::NoState& error) {
      if (first.empty()) first = error.what();
      if (runs.size() > 1) log(LogLevel::kWarning, "run passed over: " + std::string(error.what()));
    }
  }
  throw InputError(first);
}

TrainingEnd train(const config::Config& asked, const TrainingOptions& options,
                  const EventSink& events, const StepObserver& observe) {
  config::check_supported(asked);
  if (asked.parallel.data > 1) {
    throw InputError("parallel.data above 1 can be planned and is not trained in this version");
  }
  config::Config given = asked;
  const bool resumes = !options.resume.empty();
  const RunId id = make_run_id();
  config::Config placed = given;
  std::optional<run::RunFiles> files;
  std::optional<run::ResumePoint> found;
  if (resumes) {
    files.emplace(placed, given, id, options.resume);
    planner::check_run_directories(placed);
    found = run::find_resume_point(placed);
  } else {
    planner::check_run_directories(given);
    run::place_new_run(placed, given, run::next_run_directory(given.log.dir), id);
  }
  if (found) keep_split(placed, *found);
  data::Dataset data(data::dataset_options(given));
  std::optional<Prepared> prepared = prepare_run(placed, resumes, events);
  if (!prepared) return TrainingEnd::kRefused;
  // The run's own configuration names the micro-batches that were chosen.
  given.train.micro_batch = prepared->config.train.micro_batch;
  given.train.accumulate = prepared->config.train.accumulate;
  data.divide(given.train.micro_batch, given.train.accumulate);
  if (found) check_found(*found, *prepared, data, options.accept_other_arithmetic);
  // From here on things are made. A new run has touched nothing so far.
  config::Config& config = prepared->config;
  const planner::Plan& plan = *prepared->plan();
  if (!files) files.emplace(config, given, id);
  if (plan.need.storage_bytes > 0) files->make_storage(config);
  Trainer trainer({.config = config,
                   .options = options,
                   .data = data,
                   .model = prepared->model,
                   .plan = plan,
                   .backend = prepared->backend,
                   .files = *files,
                   .run_id = id,
                   .events = events,
                   .observe = observe});
  trainer.set_peak_flops(measured_peak_flops(prepared->hardware, config));
  files->begin(given);
  const RunEvent event = begin_event(*prepared, id, found, trainer);
  files->event(event);
  events(event);
  write_plan(*prepared, *files);
  trainer.start(found);
  return trainer.run();
}

}  // namespace sluice::train
