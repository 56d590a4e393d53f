// Where a run goes on from: a durable run's commit, or a checkpoint of files.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.hpp"
#include "engine/checkpoint/durable_checkpoint.hpp"

namespace sluice::run {

struct ResumePoint {
  std::optional<checkpoint::DurableFound> durable;
  std::optional<checkpoint::CheckpointFound> checkpoint;
  // That say to be newer, and are not what was committed.
  std::vector<std::string> passed_over_logs;

  const checkpoint::CheckpointManifest& manifest() const {
    return durable ? durable->manifest : checkpoint->manifest;
  }
  const std::string& where() const { return durable ? durable->log : checkpoint->directory; }
};

// The newer of the two in config.checkpoint.dir, with a warning of what was passed over. Throws
// InputError where there is neither, with the reason of what failed, and where the data of a newer
// commit are not there; IoError where that cannot be told.
ResumePoint find_resume_point(const config::Config& config);

// Throws InputError where another run wrote the point than one of `runs`, those of log_dir. A point
// that does not say who wrote it, and a directory that does not say whose it is, are taken.
void check_run(const ResumePoint& point, const std::set<std::string>& runs,
               const std::string& log_dir);

// Throws InputError naming the first thing in which this run is another than the one that left the
// point: weight, home of state, setting, data. homes: this run's homes of state.
void check_resume_point(const ResumePoint& point, const config::Config& config, const model::Model& model,
                        const std::string& data_fingerprint,
                        const std::vector<const schedule::Buffer*>& homes);

}  // namespace sluice::run
