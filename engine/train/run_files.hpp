// The run directory: what stands in it, and who writes what. What an earlier run left is never
// overwritten: a fresh start moves its checkpoints, events, weights, settings, plan, traces and
// report into earlier-1, earlier-2 and so on, each of which is a run directory that can be resumed.
#pragma once

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "base/run_id.hpp"
#include "engine/train/config.hpp"
#include "engine/train/events.hpp"
#include "engine/train/run_lock.hpp"

namespace sluice {

inline constexpr const char* kEarlierPrefix = "earlier-";

class RunFiles {
 public:
  // Makes and locks the directories; what an earlier run left in them stands until begin(). Throws
  // InputError where one cannot be made or another run holds it.
  RunFiles(const Config& config, const RunId& run, bool uses_storage);

  // Writes config.toml and opens events.jsonl. own_log: of a durable run, which has made it
  // already.
  void begin(const Config& config, bool fresh, const std::string& own_log);

  // Appends a line to events.jsonl. IoError.
  void event(const RunEvent& event);
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

}  // namespace sluice
