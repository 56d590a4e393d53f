// The files of one run, which nobody else writes: locks, configuration, events, traces.
#pragma once

#include <array>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/run_id.hpp"
#include "engine/config/config.hpp"
#include "engine/run/run_directory.hpp"
#include "engine/run/run_event.hpp"
#include "engine/run/run_lock.hpp"

namespace sluice::run {

// All that a run writes in its directory beside checkpoints, storage and lock; the reports are
// written by `sluice report`.
inline constexpr std::array kRunFiles{kConfigFile,           kEventsFile,  "plan.json",
                                      "plan_trace.json",     "trace.json", "trace.perfetto.json",
                                      "weights.safetensors", "report.html"};

// A file of the run cannot be written: a fault outside the state, which can still be saved.
class RunFileError : public Error {
 public:
  using Error::Error;
  std::string_view code() const noexcept override { return "io"; }
};

class RunFiles {
 public:
  // Both set the paths of `config` (run_directory.hpp) by those of `given`, make what belongs to
  // the run, and lock it. Throw InputError where a directory cannot be made or another run holds
  // it. Where begin() is not reached, the destructor removes what was made, and leaves a lock that
  // was found as it was.
  // Claims the directory of a new run.
  RunFiles(config::Config& config, const config::Config& given, const RunId& run);
  // Takes that of the run that is resumed. Files of resumes that were killed before their first
  // commit are removed: they take room.
  RunFiles(config::Config& config, const config::Config& given, const RunId& run,
           const std::string& resumed);
  ~RunFiles();
  RunFiles(const RunFiles&) = delete;
  RunFiles& operator=(const RunFiles&) = delete;

  // Makes the storage paths. InputError.
  void make_storage(const config::Config& config);
  // Writes config.toml and opens events.jsonl; a new run becomes LOGDIR/latest.
  void begin(const config::Config& given);

  // Appends a line to events.jsonl. RunFileError.
  void event(const RunEvent& event);
  // Writes the file anew: what was there stays whole until the new text is. RunFileError.
  void text(const char* name, const std::string& text);
  // The run's storage paths, and those of killed processes of this run before it.
  const std::vector<std::string>& storage_paths() const { return lock_->storage_paths(); }
  std::string path(const char* name) const { return (directory_ / name).string(); }

 private:
  void make(const std::string& directory, bool durable);
  void link_checkpoints(const config::Config& config);
  void lock(const config::Config& config, const RunId& run);
  void undo() noexcept;

  const bool fresh_;
  bool begun_ = false;
  std::filesystem::path directory_;
  std::vector<std::string> made_;  // directories and the link, in order
  std::optional<RunLock> lock_;
  std::optional<RunLock> checkpoint_lock_;  // where checkpoints lie elsewhere
  std::ofstream events_;
};

}  // namespace sluice::run
