#include "engine/run/resume_point.hpp"

#include <sstream>

#include "base/error.hpp"
#include "base/log.hpp"
#include "engine/checkpoint/saved_parts.hpp"

namespace sluice::run {

ResumePoint find_resume_point(const config::Config& config) {
  ResumePoint point;
  std::vector<checkpoint::PassedOver> passed_over;
  point.durable = checkpoint::find_durable_of_ranks(config.checkpoint.dir,
                                                    config.memory.storage_paths, passed_over);
  try {
    point.checkpoint = checkpoint::find_checkpoint(config.checkpoint.dir);
  } catch (const checkpoint::UnknownVersion&) {
    throw;
  } catch (const InputError& error) {
    if (!point.durable) {
      throw NoState(passed_over.empty() ? std::string(error.what()) : passed_over.front().why);
    }
  }
  if (point.durable && point.checkpoint &&
      point.durable->manifest.step < point.checkpoint->manifest.step) {
    point.durable.reset();
  }
  const std::int64_t step = point.manifest().step;
  // Older commits are superseded.
  std::erase_if(passed_over, [&](const checkpoint::PassedOver& passed) {
    return passed.step >= 0 && passed.step <= step;
  });
  for (const checkpoint::PassedOver& passed : passed_over) {
    if (!passed.absent) continue;
    const std::string instead = passed.step < 0 ? "" : " instead of " + std::to_string(passed.step);
    throw InputError(passed.why + "; put it back, or remove '" + passed.log +
                     "' to go on from step " + std::to_string(step) + instead);
  }
  for (const checkpoint::PassedOver& passed : passed_over) {
    const bool newer = passed.step > step;
    // A record that cannot be read was cut short as it was written, and then it is no commit, or it
    // was damaged since, and then nothing can be had from it.
    const bool same_log = point.durable && point.durable->log == passed.log;
    log(LogLevel::kWarning, "commit passed over: " + passed.why +
                                (newer      ? "; '" + passed.log + "' stays, with its data"
                                 : same_log ? "; if one of them was a later commit, it is lost"
                                            : ""));
    if (newer) point.passed_over_logs.push_back(passed.log);
  }
  return point;
}

// Lines: the step, and then each path after a letter. d: a checkpoint's directory; l: a log of a
// commit; p: a log that is passed over.
std::string resume_point_text(const ResumePoint& point) {
  std::string text = std::to_string(point.manifest().step);
  if (point.durable) {
    for (const std::string& log : checkpoint::logs_of(*point.durable)) text += "\nl" + log;
  } else {
    text += "\nd" + point.checkpoint->directory;
  }
  for (const std::string& log : point.passed_over_logs) text += "\np" + log;
  return text;
}

ResumePoint open_resume_point(const std::string& text,
                              const std::vector<std::string>& storage_paths) {
  ResumePoint point;
  std::vector<std::string> logs;
  std::istringstream lines(text);
  std::string step;
  std::getline(lines, step);
  for (std::string line; std::getline(lines, line);) {
    const std::string path = line.substr(1);
    if (line[0] == 'd') point.checkpoint = checkpoint::open_checkpoint(path);
    if (line[0] == 'l') logs.push_back(path);
    if (line[0] == 'p') point.passed_over_logs.push_back(path);
  }
  if (!logs.empty()) {
    point.durable = checkpoint::open_durable(logs, std::stoll(step), storage_paths);
  }
  return point;
}

void check_resume_point(const ResumePoint& point, const config::Config& config,
                        const model::Model& model, const std::string& data_fingerprint,
                        const std::vector<const schedule::Buffer*>& homes, bool is_alone) {
  if (!point.durable) {
    return checkpoint::check_checkpoint(*point.checkpoint, config, model, data_fingerprint);
  }
  checkpoint::check_manifest(point.manifest(), point.where(), config, data_fingerprint);
  checkpoint::SavedParts(*point.durable, model).check(homes, is_alone);
}

}  // namespace sluice::run
