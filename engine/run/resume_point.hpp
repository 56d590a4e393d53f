// Where a run goes on from: a durable run's commit, or a checkpoint of files.
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

// The newer of the two in config.checkpoint.dir, with a warning of each newer one that was passed
// over. Throws NoState where there is neither; InputError where the data of a newer commit are not
// there; IoError where that cannot be told.
ResumePoint find_resume_point(const config::Config& config);

// Throws InputError naming the first thing in which this run is another than the one that left the
// point: weight, home of state, setting, data. homes: this run's homes of state.
void check_resume_point(const ResumePoint& point, const config::Config& config,
                        const model::Model& model, const std::string& data_fingerprint,
                        const std::vector<const schedule::Buffer*>& homes);

}  // namespace sluice::run
