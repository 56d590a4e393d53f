#include "engine/train/training_run.hpp"

#include <algorithm>
#include <filesystem>

#include "base/error.hpp"
#include "base/posix_file.hpp"
#include "base/units.hpp"
#include "engine/checkpoint/huggingface_export.hpp"
#include "engine/config/shapes.hpp"
#include "engine/data/dataset_options.hpp"
#include "engine/planner/machine_check.hpp"
#include "engine/run/set_aside.hpp"
#include "engine/train/model_flops.hpp"
#include "engine/train/prepare.hpp"
#include "engine/train/trainer.hpp"

namespace sluice::train {
namespace {

namespace fs = std::filesystem;

// Bytes of the final weights in Hugging Face's layout; 0 for a model that transformers lacks.
std::uint64_t huggingface_bytes(const config::Config& config) {
  const model::ModelShape shape = config::model_shape(config);
  if (!checkpoint::huggingface_obstacle(shape).empty()) return 0;
  return checkpoint::huggingface_bytes(shape, config::optimizer_options(config).weight);
}

// Bytes that the run will add to checkpoint.dir at most: checkpoints (the newest two are kept while
// a third is written) and the exported weights, which may lie on the same file system.
std::uint64_t saved_bytes(const config::Config& config, const planner::Plan& plan, bool resumes) {
  const bool saves_last = config.checkpoint.final;
  if (!saves_last && config.checkpoint.every == 0 && !plan.options.durable) return 0;
  const std::uint64_t weights =
      saves_last ? plan.state_bytes_of(StateKind::kWeight) + huggingface_bytes(config) : 0;
  // The state on storage is the checkpoint.
  if (plan.options.durable) return plan.need.log_bytes + weights;
  std::uint64_t checkpoint = plan.state_bytes_of(StateKind::kWeight);
  for (const StateKind kind : kOptimizerKinds) checkpoint += plan.state_bytes_of(kind);
  const std::uint64_t most_saves =
      config.checkpoint.every > 0 ? ceil_div(static_cast<std::uint64_t>(config.train.steps),
                                             static_cast<std::uint64_t>(config.checkpoint.every))
                                  : 1;
  // What an earlier run left makes room as the new ones come.
  const std::uint64_t kept = resumes ? 1 : 0;
  const auto checkpoints = std::clamp<std::uint64_t>(most_saves, 1, 3 - kept);
  return checkpoints * checkpoint + weights;
}

void write_plan(Prepared& prepared, run::RunFiles& files) {
  files.text("plan.json", plan_event(*prepared.plan()).dump() + "\n");
  TraceRecorder trace;
  schedule::simulate(prepared.plan()->training(), prepared.simulation_model(), &trace);
  files.text("plan_trace.json", trace.to_json());
}

// What `path` is called now that the directory `from` is called `to`: another name for what is
// below it, or is it.
std::string moved_along(const std::string& path, const std::string& from, const std::string& to) {
  const fs::path below = normal_path(path).lexically_relative(normal_path(from));
  if (below.empty() || *below.begin() == "..") return path;
  return below == "." ? to : (fs::path(to) / below).string();
}

bool holds_anything(const std::string& directory) {
  std::error_code error;
  const fs::directory_iterator entries(directory, error);
  return !error && entries != fs::directory_iterator();
}

}  // namespace

void use_run_directory(config::Config& config, const std::string& directory) {
  for (std::string& path : config.memory.storage_paths) {
    path = moved_along(path, config.log.dir, directory);
  }
  const std::string own = config::default_checkpoint_dir(directory);
  config.checkpoint.dir = run::is_set_aside(directory) && holds_anything(own)
                              ? own
                              : moved_along(config.checkpoint.dir, config.log.dir, directory);
  config.log.dir = directory;
}

TrainingEnd train(const config::Config& given, const TrainingOptions& options,
                  const EventSink& events, const StepObserver& observe) {
  config::Config written = given;  // config.toml keeps its "auto"
  if (!options.resume.empty()) use_run_directory(written, options.resume);
  config::check_supported(written);
  planner::check_run_directories(written);
  const bool resumes = !options.resume.empty();
  const RunId run = make_run_id();
  if (resumes && fs::is_directory(options.resume)) run::RunFiles::remove_uncommitted(written, run);
  const data::Dataset data(data::dataset_options(written));
  Prepared prepared =
      prepare(written, planner::load_profile_or_default(planner::default_profile_path()),
              PlannedMachine::kThis);
  if (prepared.refusal() != nullptr) {
    events(refused_event(*prepared.refusal()));
    return TrainingEnd::kRefused;
  }
  const config::Config& config = prepared.config;
  const planner::Plan& plan = *prepared.plan();
  planner::check_storage_paths(config, plan.need.storage_bytes);
  planner::check_checkpoint_room(config, saved_bytes(config, plan, resumes),
                                 plan.need.storage_bytes);
  // Nothing is made to be found empty.
  if (resumes && !holds_anything(config.checkpoint.dir)) run::find_resume_point(config);
  if (resumes && !fs::is_directory(options.resume)) {
    throw InputError("--resume: '" + options.resume + "' is no directory; give a run's log.dir");
  }
  // From here on the directories are this run's. Nothing else has been created or changed; an
  // earlier run's files stand until all memory of this one is there.
  run::RunFiles files(written, run, plan.need.storage_bytes > 0);
  std::optional<run::ResumePoint> found;
  if (resumes) {
    found = run::find_resume_point(config);
    run::check_run(*found, run::runs_in(config.log.dir).ids, config.log.dir);
    run::check_resume_point(*found, config, prepared.model, data.fingerprint(),
                            Session::homes(plan.schedules[schedule::StepKind::kEvaluation]));
    if (!options.accept_other_arithmetic) {
      checkpoint::check_arithmetic(found->manifest(), found->where(),
                                   prepared.backend.device_kernels->arithmetic());
    }
  }
  Trainer trainer(config, options, data, prepared.model, plan, prepared.backend, files, run, events,
                  observe);
  files.begin(written, !found, trainer.state_log());
  const auto peak_flops = measured_peak_flops(prepared.hardware, config);
  trainer.set_peak_flops(peak_flops);
  RunEvent planned_event = plan_event(plan);
  add_device(planned_event, prepared.backend, peak_flops);
  planned_event["run_id"] = run.hex();
  // The next run in this directory learns here whose checkpoints are where.
  planned_event["log_dir"] = fs::absolute(config.log.dir).string();
  planned_event["checkpoint_dir"] = fs::absolute(config.checkpoint.dir).string();
  if (found && !found->manifest().run_id.empty()) {
    planned_event["resumed_run_id"] = found->manifest().run_id;
  }
  if (plan.need.storage_bytes > 0 && config.memory.storage_paths.size() > 1) {
    planned_event["storage_shares"] = trainer.storage_shares();
  }
  files.event(planned_event);
  files.sync_events();
  events(planned_event);
  write_plan(prepared, files);
  trainer.start(found);
  return trainer.run();
}

}  // namespace sluice::train
