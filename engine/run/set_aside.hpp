// Setting aside: a fresh start takes nothing from anybody.
//
// What an earlier run owned in log.dir becomes log.dir/earlier-N, a run directory of its own: its
// files (kRunFiles), a mark, and `checkpoints` with what it had saved. The mark says that its
// checkpoints are there, whatever checkpoint.dir its config.toml names: --resume and doctor look
// for that file and never at the directory's name, which may be changed.
//
// Its checkpoints are looked for where its event log says that they went; where that does not tell,
// or of another directory (it was moved or copied), in the checkpoint.dir of its config.toml; and
// in what another log.dir's fresh start has set aside there. They never leave their file system:
// where they cannot be renamed into earlier-N (checkpoint.dir is not below log.dir, or another
// mount), they go to CHECKPOINT_DIR/earlier-N, and `checkpoints` is a link to that. Whose they are
// is told by the run id that each carries. Those of another log.dir's runs, where the new run is
// about to save, go to CHECKPOINT_DIR/earlier-N by themselves.
//
// A config.toml that no run wrote, of a person, becomes config.toml.given.
//
// All is collected under the name earlier-N.tmp and renamed when it is whole. A start that is
// killed meanwhile leaves that, and the next goes on with it.
#pragma once

#include <string>
#include <vector>

namespace sluice::run {

inline constexpr const char* kEarlierPrefix = "earlier-";

// Whether a fresh start made the directory, so that its checkpoints are in its own `checkpoints`.
bool is_set_aside(const std::string& directory);

// A sentence for an error, with a semicolon before it, of what was set aside in log_dir; empty
// where there is nothing.
std::string told_of_set_aside(const std::string& log_dir);

// The caller holds the locks of both directories. own_log: of a durable run, which has made it
// already. storage_paths: where runs that were killed here may have left data.
// Throws InputError where nothing has been moved; Error where something cannot be moved after
// others were.
void set_aside_earlier(const std::string& log_dir, const std::string& checkpoint_dir,
                       const std::string& own_log, const std::vector<std::string>& storage_paths);

}  // namespace sluice::run
