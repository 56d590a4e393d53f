// One run per directory: an advisory lock that ends with the process, however it ends.
//
// DIRECTORY/lock holds one line of JSON: pid, host, run_id, started (UTC), storage_paths,
// earlier_runs. A run that ends removes it. A killed run leaves it behind, unlocked, and the next
// run takes it over with its paths and its run id. If a run committed nothing or lost its log, the
// lock alone says where its files lie.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/run_id.hpp"

namespace sluice::run {

struct RunHolder {
  std::int64_t pid = 0;
  std::string host;
  std::string run_id;   // 32 hex digits
  std::string started;  // "2026-11-22T04:30:00Z"
  // Absolute: this run's, and those of runs that were killed before it in this directory.
  std::vector<std::string> storage_paths;
  std::vector<std::string> earlier_runs;  // the run ids of those, the oldest first

  // "process 71 on host a, run 0123…, since 2026-11-22T04:30:00Z".
  std::string describe() const;
};

class RunLock {
 public:
  // Locks DIRECTORY/lock (mode 0600) for this process. key: the configuration key of the directory,
  // "log.dir". storage_paths: the paths in which this run will make files. Throws InputError with
  // the holder if another run holds the lock, and IoError if the file cannot be made.
  RunLock(const std::string& key, const std::string& directory, const RunId& run,
          const std::vector<std::string>& storage_paths = {});
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  struct State {
    bool exists = false;
    bool held = false;                // by a run that lives
    std::optional<RunHolder> holder;  // its writer; empty if it cannot be read
  };
  // The destructor will restore the record that the file held before, if it held one. This serves a
  // cleaner, and a run that may still be refused. drop_record() ends it.
  void keep_record() { keeps_record_ = true; }
  void drop_record() { keeps_record_ = false; }

  // Reads the lock and changes nothing. IoError.
  static State look(const std::string& directory);
  // As RunHolder's.
  const std::vector<std::string>& storage_paths() const { return storage_paths_; }

 private:
  void take_over(const RunHolder& earlier);
  void write_holder(const RunId& run);
  void write(const std::string& record) const;

  std::string path_;
  std::vector<std::string> storage_paths_;
  std::vector<std::string> earlier_runs_;
  std::string record_before_;
  bool keeps_record_ = false;
  int descriptor_ = -1;
};

}  // namespace sluice::run
