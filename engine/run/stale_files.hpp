// Stale files: what runs that were killed left on disk. A lock that nobody holds, storage files,
// checkpoints and other files that were being written.
//
// The files of a running run are never touched: its lock is looked at first, and held by the
// cleaner while it removes. Checkpoints, logs and weights are never stale. A lock stays as long as
// it alone tells of state that is only listed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::run {

struct StaleFile {
  std::string path;
  std::string what;  // "a checkpoint that was not finished"
  std::uint64_t bytes = 0;
  bool removable = true;  // else only listed: its owner may still want it
};

struct StaleRun {
  std::string directory;
  std::string in_use_by;  // of a run that still goes on, which is left alone; empty: none
  std::vector<StaleFile> files;
  bool removed = false;
};

// Looks at each directory: a run's own, a log.dir, or one that log.dirs lie in. Where a run's
// checkpoints lie elsewhere, there too. In storage paths that runs share, only files of that run
// are stale. remove: removes the files that it lists as removable. Throws InputError where a path
// is no directory; IoError.
std::vector<StaleRun> find_stale_files(const std::vector<std::string>& directories, bool remove);

}  // namespace sluice::run
