// Checkpoints of a durable run: DIR/state-RUN.log names state that lies in the run's storage files.
//
// Nothing is written for a checkpoint but the log's records (offload/state_log.hpp): the state on
// storage is the checkpoint. A record is a manifest (manifest.hpp) with two more members: `space`,
// the files, and `homes`, where in them each kind of state of each unit lies, with a digest. It
// counts when all of it verifies, data included. Records are read as untrusted. RUN is a run id:
// the storage files carry it too (StripedSpace::file_paths).
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/checkpoint/manifest.hpp"
#include "engine/runtime/durable_state.hpp"
#include "offload/state_log.hpp"

namespace sluice::checkpoint {

struct SavedState {
  RunId run;        // seeds the tags of its blocks
  std::string log;  // where its log was when it was written
  // Of that file, which alone owns the data: a rename keeps it, and a copy has another. Empty: not
  // known.
  std::string log_id;
  std::vector<std::string> files;  // in the order of their stripes
  std::uint64_t space_bytes = 0;
  std::vector<runtime::SavedHome> homes;
  std::vector<std::uint32_t> shares;  // of each file in a round of stripes

  bool operator==(const SavedState&) const = default;
};

struct DurableFound {
  std::string log;
  CheckpointManifest manifest;
  SavedState state;
};

std::string state_log_path(const std::string& directory, const std::string& run_id);
// Whether a record of it can be read; no error where the file cannot.
bool holds_commit(const std::string& log);
// What stands for the run id in a log's name; empty where it is no log's.
std::string run_of_log(const std::string& log);

// manifest: without `files` and `weights_hash`.
std::string format_state_record(const CheckpointManifest& manifest, const SavedState& state);
// Throws InputError naming `name` and the member.
void parse_state_record(std::string_view text, const std::string& name,
                        CheckpointManifest& manifest, SavedState& state);

// Reads one home of a kept space from its begin to its end, and knows what was committed.
class SavedHomeReader {
 public:
  // All must outlive it.
  SavedHomeReader(offload::StripedSpace& space, const RunId& run, const runtime::SavedHome& home)
      : space_(space), run_(run), home_(home) {}
  // The next `bytes`: whole blocks, or up to the end. IoError.
  void read(std::byte* data, std::uint64_t bytes);
  // All of it has been read. Throws InputError where it is not what was committed.
  void finish() const;

 private:
  offload::StripedSpace& space_;
  const RunId& run_;
  const runtime::SavedHome& home_;
  std::uint64_t cursor_ = 0;
  std::vector<offload::BlockTag> tags_;
};

// A commit, or a whole log, that nothing can be taken from.
struct PassedOver {
  std::string log;
  std::string why;         // a sentence without its end
  std::int64_t step = -1;  // that its record is of; -1: no record of it can be read
  // Its data are not there, or the log cannot be opened: perhaps a disk is not mounted, or it is
  // somebody else's. Whoever goes on without it may go on from an older step.
  bool absent = false;
};

// The newest record of one log whose data verify; nothing where there is none. `passed_over` gets
// what does not. storage_paths: where files are looked for that are no longer where the record
// says. Data that are cut short, or that the disk cannot read twice in a row (EIO), do not verify;
// any other IoError, and what else says nothing about the data, is thrown.
std::optional<DurableFound> recover_state(offload::StorageEngine& engine, const std::string& log,
                                          const std::vector<std::string>& storage_paths,
                                          std::vector<PassedOver>& passed_over);

// The newest step of all logs in `directory`.
std::optional<DurableFound> find_durable(const std::string& directory,
                                         const std::vector<std::string>& storage_paths,
                                         std::vector<PassedOver>& passed_over);

// Throws InputError naming the first home that this run has otherwise: `homes` are its own.
void check_homes(const DurableFound& found, const std::vector<const schedule::Buffer*>& homes);

// Removes every other run's log in `directory`, each after the files that carry its run id. What
// its records name stays where this log is a copy of the one that made it, and a log stays with its
// data where neither record can be read, and where it is one of `kept`.
void retire_other_logs(const std::string& directory, const std::string& own_log,
                       const std::vector<std::string>& storage_paths,
                       const std::vector<std::string>& kept);

// Whether the data of a log that was made as `made` are the log's own, and not those of one that it
// is a copy of. A rename keeps the inode, and so does a mount, which may change the device; a hard
// link has both and another path.
bool owns_data(const std::string& log, const offload::StateLog::Origin& made);

// The data files of a durable run in the given directories.
std::vector<std::filesystem::path> data_of_run(const std::string& run_id,
                                               const std::vector<std::string>& directories);

// Files of runs that were killed before they committed anything: blank logs, each after the data of
// its run in storage_paths where it is no copy.
std::vector<std::string> files_without_commit(const std::string& directory,
                                              const std::vector<std::string>& storage_paths);
// Removes those, but for own_log's.
void remove_logs_without_commit(const std::string& directory, const std::string& own_log,
                                const std::vector<std::string>& storage_paths);

// The files of a run that has committed nothing yet: removed when it ends so.
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

  // A record may name them from now on.
  void keep() { kept_ = true; }
  const std::string& run_id() const { return run_id_; }
  std::string log_path() const { return state_log_path(directory_, run_id_); }

 private:
  std::string directory_;
  std::string run_id_;
  const std::vector<std::string>& storage_paths_;
  bool kept_ = false;
};

}  // namespace sluice::checkpoint
