// The files of one run, which no other process writes: locks, configuration, events, traces.
#pragma once

#include <array>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/run_id.hpp"
#include "engine/config/config.hpp"
#include "engine/run/run_directory.hpp"
#include "engine/run/run_event.hpp"
#include "engine/run/run_lock.hpp"

namespace sluice::run {

// All files that a run writes in its directory, besides checkpoints, storage and lock. `sluice
// report` writes the reports.
inline constexpr std::array kRunFiles{kConfigFile,           kEventsFile,           kLaunchFile,
                                      "plan.json",           "plan_trace.json",     "trace.json",
                                      "trace.perfetto.json", "weights.safetensors", "report.html"};

// A file of the run cannot be written: a fault outside the state, which can still be saved.
class RunFileError : public Error {
 public:
  using Error::Error;
  std::string_view code() const noexcept override { return "io"; }
};

// The run's directory was moved or removed while the run went on.
class RunMoved : public Error {
 public:
  using Error::Error;
  std::string_view code() const noexcept override { return "io"; }
};

class RunFiles {
 public:
  // Both constructors set the paths of `config` (run_directory.hpp) from those of `given`, make the
  // run's directories and lock them. They throw InputError if a directory cannot be made or another
  // run holds it. Without begin(), the destructor removes the new directories and restores a lock
  // that it found.
  //
  // This one claims the directory of a new run.
  RunFiles(config::Config& config, const config::Config& given, const RunId& run);
  // This one takes the directory of the resumed run. It removes files of resumes that were killed
  // before their first commit, because they take room.
  RunFiles(config::Config& config, const config::Config& given, const RunId& run,
           const std::string& resumed);
  // The files of another rank than the first, in RUN/rank-R: its events and its trace. The first
  // rank has made and locked the run's directory. Sets the paths of `config`: storage paths, and
  // checkpoint.dir of a durable run, get directories of the rank. begin() makes the rank's
  // directory.
  RunFiles(config::Config& config, const std::string& run, int rank);
  ~RunFiles();
  RunFiles(const RunFiles&) = delete;
  RunFiles& operator=(const RunFiles&) = delete;

  // Makes the storage paths. InputError.
  void make_storage(const config::Config& config);
  // Writes config.toml and opens events.jsonl; a new run becomes LOGDIR/latest. Of another rank
  // than the first: opens its events.
  void begin(const config::Config& given);

  // Appends a line to events.jsonl. RunFileError.
  void event(const RunEvent& event);
  // Throws RunMoved unless the directories of the run and of its checkpoints are still the ones in
  // which it began. Another start may claim a path that is free, and saving by path would then
  // overwrite that run. Call before state or weights are saved.
  void check_in_place() const;
  // Replaces the file atomically: the old text stays whole until the new one is. RunFileError.
  void text(const char* name, const std::string& text);
  // The run's storage paths, and those of killed processes of this run before it.
  const std::vector<std::string>& storage_paths() const {
    return lock_ ? lock_->storage_paths() : rank_storage_paths_;
  }
  const std::filesystem::path& directory() const { return directory_; }
  std::string path(const char* name) const { return (directory_ / name).string(); }

 private:
  using Identity = std::pair<std::uint64_t, std::uint64_t>;  // device and inode
  static Identity identity_of(const std::string& directory);
  void make(const std::string& directory, bool durable);
  void open_events();
  void link_checkpoints(const config::Config& config);
  void lock(const config::Config& config, const RunId& run);
  void undo() noexcept;

  const bool fresh_;
  bool begun_ = false;
  std::filesystem::path directory_;
  bool is_rank_ = false;           // another than the first, whose directories have known names
  std::vector<std::string> made_;  // directories and the link, in order
  std::optional<RunLock> lock_;
  std::optional<RunLock> checkpoint_lock_;  // where checkpoints lie elsewhere
  std::ofstream events_;
  std::string checkpoints_;
  std::vector<std::string> rank_storage_paths_;           // of another rank than the first
  std::vector<std::pair<std::string, Identity>> places_;  // once it has begun
};

}  // namespace sluice::run
