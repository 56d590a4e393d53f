#include "engine/train/resume_point.hpp"

#include "base/error.hpp"
#include "base/log.hpp"
#include "engine/train/set_aside.hpp"

namespace sluice {

ResumePoint find_resume_point(const Config& config) {
  ResumePoint point;
  std::vector<std::string> failures;
  point.durable = find_durable(config.checkpoint.dir, config.memory.storage_paths, failures);
  if (point.durable) {
    for (const std::string& failure : failures) {
      log(LogLevel::kWarning, "commit passed over: " + failure);
    }
  }
  try {
    point.checkpoint = find_checkpoint(config.checkpoint.dir);
  } catch (const InputError& error) {
    if (point.durable) return point;
    throw InputError((failures.empty() ? std::string(error.what()) : failures.front()) +
                     told_of_set_aside(config.log.dir));
  }
  if (point.durable && point.durable->manifest.step < point.checkpoint->manifest.step) {
    point.durable.reset();
  }
  return point;
}

void check_run(const ResumePoint& point, const std::set<std::string>& runs,
               const std::string& log_dir) {
  const std::string& run = point.manifest().run_id;
  if (run.empty() || runs.empty() || runs.contains(run)) return;
  throw InputError(point.where() + ": was written by run " + run +
                   ", which is none of those that events.jsonl of '" + log_dir +
                   "' names; --set checkpoint.dir=... names where this run's checkpoints are");
}

void check_resume_point(const ResumePoint& point, const Config& config, const Model& model,
                        const std::string& data_fingerprint,
                        const std::vector<const Buffer*>& homes) {
  if (!point.durable) return check_checkpoint(*point.checkpoint, config, model, data_fingerprint);
  check_manifest(point.manifest(), point.where(), config, data_fingerprint);
  check_homes(*point.durable, homes);
}

}  // namespace sluice
