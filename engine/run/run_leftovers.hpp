// What runs that were killed left on disk: a lock that nobody holds, storage files, checkpoints and
// other files that were being written.
//
// What a live run holds is never touched: its lock is looked at first, and held by the cleaner
// while it removes. Checkpoints, logs and weights are no leftovers. A lock stays as long as it is
// all that tells of state which is only listed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::run {

struct Leftover {
  std::string path;
  std::string what;  // "a checkpoint that was not finished"
  std::uint64_t bytes = 0;
  bool removable = true;  // else only listed: somebody may still want it
};

struct RunLeftovers {
  std::string directory;
  std::string in_use_by;  // of a live run, which is left alone; empty: none
  std::vector<Leftover> leftovers;
  bool removed = false;
};

// Looks at each directory: a run's own, with those that were set aside in it, or one that runs lie
// in. Where config.toml of a run names
// storage paths and checkpoints elsewhere, there too; of shared storage paths only files of that
// run. remove: takes away what it lists and is removable. Throws InputError for what is no
// directory; IoError.
std::vector<RunLeftovers> find_leftovers(const std::vector<std::string>& directories, bool remove);

}  // namespace sluice::run
