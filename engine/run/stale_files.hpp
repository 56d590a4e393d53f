// Stale files: the remains of killed runs. These are locks without a holder, storage files,
// checkpoints and other files and links that were not finished, and directories of runs that never
// began.
//
// The files of a running run are never touched: the cleaner reads its lock first, and holds it
// while it removes files. Checkpoints, logs and weights are never stale. A lock stays while it is
// the only record of state that is listed but not removed.
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
  std::string in_use_by;  // the running process, whose files stay; empty: none
  std::string damage;     // why the run cannot be examined, and is left alone; empty: it can
  std::vector<StaleFile> files;
  bool removed = false;
};

// Searches each directory: a run's own, a log.dir, or a parent of log.dirs. It follows checkpoints
// that lie elsewhere. In storage paths that several runs share, it considers only files of the run
// at hand. remove: the removable files go. Throws InputError if a path is no directory; IoError.
std::vector<StaleRun> find_stale_files(const std::vector<std::string>& directories, bool remove);

}  // namespace sluice::run
