#include "engine/train/training_run.hpp"

#include <algorithm>
#include <filesystem>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/posix_file.hpp"
#include "base/units.hpp"
#include "engine/planner/cost_model.hpp"
#include "engine/planner/machine_check.hpp"
#include "engine/run/run_files.hpp"
#include "engine/run/stale_files.hpp"
#include "engine/train/backend.hpp"
#include "engine/train/trainer.hpp"
#include "kernels/host/parallel.hpp"

namespace sluice::train {
namespace {

namespace fs = std::filesystem;

// Bytes that the run will add to checkpoint.dir at most: checkpoints (the newest two are kept while
// a third is written) and the exported weights, which may lie on the same file system.
std::uint64_t saved_bytes(const config::Config& config, const planner::Plan& plan, bool resumes) {
  const bool saves_last = config.checkpoint.final;
  if (!saves_last && config.checkpoint.every == 0 && !plan.options.durable) return 0;
  const std::uint64_t weights = saves_last ? plan.state_bytes_of(StateKind::kWeight) : 0;
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

data::DatasetOptions dataset_options(const config::Config& config) {
  data::DatasetOptions options;
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

void write_plan(const config::Config& config, const model::Model& model,
                const planner::HardwareProfile& hardware, const planner::Plan& plan,
                run::RunFiles& files) {
  files.text("plan.json", plan_event(plan).dump() + "\n");
  TraceRecorder trace;
  const model::BatchShape batch = planner::batch_shape(config);
  schedule::simulate(plan.training,
                     planner::CostModel(config, model, batch, hardware).simulation_model(), &trace);
  files.text("plan_trace.json", trace.to_json());
}

// Adds to the refusal of a disk without room what stale files of runs in log.dir take.
[[noreturn]] void refuse_without_room(const planner::NoRoom& error, const std::string& log_dir) {
  std::uint64_t bytes = 0;
  if (fs::is_directory(log_dir)) {
    for (const run::StaleRun& run : run::find_stale_files({log_dir}, false)) {
      for (const run::StaleFile& file : run.files) bytes += file.removable ? file.bytes : 0;
    }
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

TrainingEnd train(const config::Config& given, const TrainingOptions& options,
                  const EventSink& events, const StepObserver& observe) {
  config::check_supported(given);
  const bool resumes = !options.resume.empty();
  const RunId id = make_run_id();
  config::Config config = given;
  std::optional<run::RunFiles> files;
  std::optional<run::ResumePoint> found;
  if (resumes) {
    files.emplace(config, given, id, options.resume);
    planner::check_run_directories(config);
    found = run::find_resume_point(config);
  } else {
    planner::check_run_directories(given);
    run::place_new_run(config, given, run::next_run_directory(given.log.dir), id);
  }
  settle_backend(config);
  if (config.train.threads == 0) config.train.threads = kernels::host::Parallel::default_threads();
  const Backend backend = make_backend(config);
  planner::MachineRoom room;
  try {
    room = planner::settle_budgets(config, backend.device_memory_bytes);
  } catch (const planner::NoRoom& error) {
    refuse_without_room(error, given.log.dir);
  }
  const data::Dataset data(dataset_options(config));
  const model::Model model(planner::model_shape(config));
  const planner::HardwareProfile hardware =
      planner::load_profile_or_default(planner::default_profile_path());
  auto planned = planner::make_plan(config, model, *backend.device_kernels, hardware,
                                    backend.host_kernels.get());
  if (auto* refusal = std::get_if<planner::Refusal>(&planned)) {
    planner::keep_possible_suggestions(*refusal, config, room);
    events(refused_event(*refusal));
    return TrainingEnd::kRefused;
  }
  const planner::Plan& plan = std::get<planner::Plan>(planned);
  try {
    planner::check_storage_paths(config, plan.need.storage_bytes);
    planner::check_checkpoint_room(config, saved_bytes(config, plan, resumes),
                                   plan.need.storage_bytes);
  } catch (const planner::NoRoom& error) {
    refuse_without_room(error, given.log.dir);
  }
  if (found) {
    run::check_resume_point(*found, config, model, data.fingerprint(),
                            Session::homes(plan.evaluation));
    if (!options.accept_other_arithmetic) {
      checkpoint::check_arithmetic(found->manifest(), found->where(),
                                   backend.device_kernels->arithmetic());
    }
    note_steps(found->manifest(), config);
  }
  // From here on things are made. A run that is not resumed has touched nothing so far.
  if (!files) files.emplace(config, given, id);
  if (plan.need.storage_bytes > 0) files->make_storage(config);
  Trainer trainer(config, options, data, model, plan, backend, *files, id, events, observe);
  files->begin(given);
  RunEvent planned_event = plan_event(plan);
  planned_event["run_id"] = id.hex();
  const fs::path directory = normal_path(config.log.dir);
  planned_event["log_dir"] = directory.parent_path().string();
  planned_event["run_dir"] = directory.string();
  planned_event["checkpoint_dir"] = normal_path(config.checkpoint.dir).string();
  if (found && !found->manifest().run_id.empty()) {
    planned_event["resumed_run_id"] = found->manifest().run_id;
  }
  if (plan.need.storage_bytes > 0 && config.memory.storage_paths.size() > 1) {
    planned_event["storage_shares"] = trainer.storage_shares();
  }
  files->event(planned_event);
  events(planned_event);
  write_plan(config, model, hardware, plan, *files);
  trainer.start(found);
  return trainer.run();
}

}  // namespace sluice::train
