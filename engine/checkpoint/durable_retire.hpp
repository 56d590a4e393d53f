// Removes files that a durable run no longer needs: superseded logs with their data, and the files
// of a run that was killed before its first commit.
//
// The rule: data belong to the log that made them, and go with it. A copy of a log (a backup, a
// copied run directory) owns nothing. A log that cannot be read stays, with its data. Data are
// removed before their log, because a log that is gone would leave its data to nobody.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/checkpoint/durable_record.hpp"
#include "offload/state_log.hpp"

namespace sluice::checkpoint {

// Removes every other run's log in `directory`, each after the data files that carry its run id. If
// a log is a copy, the files that its records name stay. A log stays with its data if neither of
// its records can be read, or if it is one of `kept`.
void retire_other_logs(const std::string& directory, const std::string& own_log,
                       const std::vector<std::string>& storage_paths,
                       const std::vector<std::string>& kept);

// Whether a log that was created as `made` owns its data, and is not a copy of the log that does. A
// rename keeps the inode, and so does a mount, which may change the device. A hard link keeps both,
// but has another path.
bool owns_data(const std::string& log, const offload::StateLog::Origin& made);

// Returns the files of runs that were killed before they committed anything: blank logs, each after
// the data of its run in storage_paths. If a log is a copy, its data are left out.
std::vector<std::string> files_without_commit(const std::string& directory,
                                              const std::vector<std::string>& storage_paths);
// Removes those.
void remove_files_without_commit(const std::string& directory,
                                 const std::vector<std::string>& storage_paths);

// Owns the files of a run that has committed nothing yet. The destructor removes them unless keep()
// was called.
class UncommittedFiles {
 public:
  UncommittedFiles(std::string directory, std::string run_id,
                   const std::vector<std::string>& storage_paths)
      : directory_(std::move(directory)),
        run_id_(std::move(run_id)),
        storage_paths_(storage_paths) {}
  ~UncommittedFiles();
  UncommittedFiles(const UncommittedFiles&) = delete;
  UncommittedFiles& operator=(const UncommittedFiles&) = delete;

  // From now on a record may name the files.
  void keep() { kept_ = true; }
  std::string log_path() const { return state_log_path(directory_, run_id_); }

  // Remembers which files lie at these paths now. Commits rely on these files.
  void watch(const std::vector<std::string>& paths);
  // Throws Error if a watched file was deleted, moved or replaced since. Such a file would still
  // take writes, but no resume would find it.
  void check_watched() const;

 private:
  std::string directory_;
  std::string run_id_;
  const std::vector<std::string>& storage_paths_;
  bool kept_ = false;
  std::map<std::string, std::string> watched_;  // file ids (offload/storage_file.hpp) by path
};

}  // namespace sluice::checkpoint
