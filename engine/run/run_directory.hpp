// The directory of a run: LOGDIR/0001, LOGDIR/0002 and so on, and the link LOGDIR/latest.
//
// Each start makes a directory of its own, with the number after the highest that exists; mkdir is
// the claim, so two starts never share one. Everything of the run lies in it:
//   config.toml, events.jsonl, plan.json, ...   its files (run_files.hpp)
//   launch                                      the token of the `sluice launch` that started it
//   checkpoints/                                 with checkpoint.dir set: a link to
//                                                CHECKPOINT_DIR/RUN_ID, where they lie
//   storage/                                     unless memory.storage_paths is set
// Storage paths below log.dir lie below the run's directory instead. In other storage paths runs
// share the directory, and their run ids keep file names apart. A start moves and deletes nothing
// that exists. A resumed run goes on in its own directory, wherever that lies now.
#pragma once

#include <string>
#include <vector>

#include "base/run_id.hpp"
#include "engine/config/config.hpp"

namespace sluice::run {

inline constexpr const char* kConfigFile = "config.toml";
inline constexpr const char* kEventsFile = "events.jsonl";
inline constexpr const char* kLaunchFile = "launch";
inline constexpr const char* kLatest = "latest";

// Whether a run has begun in `path`: its configuration and its events are there.
bool is_run_directory(const std::string& path);
// The runs in log_dir, the highest number first. IoError.
std::vector<std::string> runs_in(const std::string& log_dir);
// Resolves a RUN as users name it. Returns `path` if that is a run, else the run to which
// `path`/latest leads, else the run below it with the highest number, else `path`.
std::string latest_run(const std::string& path);
// Like latest_run, but returns every run that a resume of `path` may continue, in the order of its
// attempts. Throws InputError if there is none.
std::vector<std::string> runs_to_resume(const std::string& path);

// The token of the launcher that last started the run; empty: none did.
std::string launch_of(const std::string& run);

// The directory that the next start in log_dir would claim.
std::string next_run_directory(const std::string& log_dir);
// Makes that directory, and log_dir if it is missing. durable: the names are on the disk on return.
// Throws InputError if it cannot be made.
std::string claim_run_directory(const std::string& log_dir, bool durable);
// Leads LOGDIR/latest to the run with the highest number, atomically. Several processes may do so
// at once. IoError.
void point_latest(const std::string& log_dir);

// Sets the paths of `config` to those of a run in `directory`: log.dir, checkpoint.dir and
// memory.storage_paths. given: the configuration as its user wrote it.
// The top of this file says where checkpoints of a new run lie. Those of a resumed run lie where
// its `checkpoints` leads. Throws InputError if no directory is there.
void place_new_run(config::Config& config, const config::Config& given,
                   const std::string& directory, const RunId& run);
void place_resumed_run(config::Config& config, const config::Config& given,
                       const std::string& directory);

// Throws InputError unless `path` is a directory of this user and no link. Another user can make a
// name that everybody can guess, such as rank-1 in a directory that all may write in.
void check_own_directory(const std::string& path);

// Makes `path` and the directories above it that are missing, and returns those, outermost first.
// durable: as above. InputError.
std::vector<std::string> make_run_directory(const std::string& path, bool durable);

}  // namespace sluice::run
