// The run directory: what stands in it, and who writes what. What an earlier run left is never
// overwritten: a fresh start moves it into earlier-1, earlier-2 and so on (set_aside.hpp).
#pragma once

#include <array>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/run_id.hpp"
#include "engine/config/config.hpp"
#include "engine/run/run_lock.hpp"
#include "engine/train/events.hpp"

namespace sluice::run {

inline constexpr const char* kConfigFile = "config.toml";
inline constexpr const char* kEventsFile = "events.jsonl";
// What a run owns in its directory beside checkpoints, storage and lock; the reports are of
// `sluice report`.
inline constexpr std::array kRunFiles{kConfigFile,           kEventsFile,  "plan.json",
                                      "plan_trace.json",     "trace.json", "trace.perfetto.json",
                                      "weights.safetensors", "report.html"};

// What the event log in a directory tells of its runs; nothing where there is none.
struct RunsTold {
  std::set<std::string>
      ids;  // of each that began there, and those whose checkpoints they went on from
  // Of the newest, absolute; empty where an older version wrote it.
  std::string log_dir;
  std::string checkpoint_dir;
};
RunsTold runs_in(const std::string& directory);

class RunFiles {
 public:
  // Makes and locks the directories; what an earlier run left in them stands until begin(). Throws
  // InputError where one cannot be made or another run holds it.
  RunFiles(const config::Config& config, const RunId& run, bool uses_storage);

  // Removes what resumes that were killed before their first commit left in the directories of a
  // run that is there: it takes room. InputError: another run holds one.
  static void remove_uncommitted(const config::Config& config, const RunId& run);

  // Writes config.toml and opens events.jsonl. own_log: of a durable run, which has made it
  // already.
  void begin(const config::Config& config, bool fresh, const std::string& own_log);

  // Appends a line to events.jsonl. IoError.
  void event(const train::RunEvent& event);
  // What has been appended is on the disk when it returns: no checkpoint may outlive the event that
  // tells whose it is. IoError.
  void sync_events();
  // Makes the file anew: what was there stays whole until the new text is. IoError.
  void text(const char* name, const std::string& text);
  // The run's storage paths, and those of killed runs before it in this directory.
  const std::vector<std::string>& storage_paths() const { return lock_.storage_paths(); }
  std::string path(const char* name) const { return (directory_ / name).string(); }

 private:
  std::filesystem::path directory_;
  RunLock lock_;
  std::optional<RunLock> checkpoint_lock_;
  std::ofstream events_;
};

}  // namespace sluice::run
