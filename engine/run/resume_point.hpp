// The state from which a run resumes: a commit of a durable run, or a checkpoint of files.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "engine/checkpoint/checkpoint.hpp"
#include "engine/checkpoint/durable_recovery.hpp"

namespace sluice::run {

struct ResumePoint {
  std::optional<checkpoint::DurableFound> durable;
  std::optional<checkpoint::CheckpointFound> checkpoint;
  // Logs of newer commits that do not verify.
  std::vector<std::string> passed_over_logs;

  const checkpoint::CheckpointManifest& manifest() const {
    return durable ? durable->manifest : checkpoint->manifest;
  }
  const std::string& where() const { return durable ? durable->log : checkpoint->directory; }
};

// A run holds no state that verifies; the sentence says why.
class NoState : public InputError {
 public:
  using InputError::InputError;
};

// Returns the newest state in config.checkpoint.dir that verifies, and warns of each newer one that
// does not. Throws NoState if there is none, InputError if the data of a newer commit are missing,
// and IoError if the disk cannot say.
ResumePoint find_resume_point(const config::Config& config);

// A resume point as one rank tells it to the others, which read its manifest for themselves.
// storage_paths: of the first rank.
std::string resume_point_text(const ResumePoint& point);
ResumePoint open_resume_point(const std::string& text,
                              const std::vector<std::string>& storage_paths);

// Throws InputError if this run differs from the run that saved the state. The message names the
// first difference: a weight, a home of state, a setting or the data. homes: this rank's homes.
void check_resume_point(const ResumePoint& point, const config::Config& config,
                        const model::Model& model, const std::string& data_fingerprint,
                        const std::vector<const schedule::Buffer*>& homes, bool is_alone = true);

}  // namespace sluice::run
