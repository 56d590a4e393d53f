#include "engine/checkpoint/durable_retire.hpp"

#include <algorithm>
#include <filesystem>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/posix_file.hpp"
#include "offload/storage_file.hpp"

namespace sluice::checkpoint {
namespace {

namespace fs = std::filesystem;

bool is_without_commit(const std::string& log, const offload::StateLog::Contents& contents,
                       const std::vector<std::string>& storage_paths) {
  return contents.blank() ||
         (contents.empty() && data_of_run(run_of_log(log), storage_paths).empty());
}

// A log without a header was cut short while it was created, so it counts as an original, not a
// copy.
bool owns_data_of_blank(const std::string& log, const offload::StateLog::Contents& contents) {
  return !contents.origin || owns_data(log, *contents.origin);
}

// Removes one log after its data.
void retire(offload::StorageEngine& engine, const std::string& path,
            const std::vector<std::string>& storage_paths) {
  std::vector<std::string> directories = storage_paths;
  std::vector<std::string> others;  // data of another log
  std::vector<fs::path> data;
  try {
    const offload::StateLog::Contents contents = offload::StateLog::read(engine, path);
    // An unreadable commit: the resume has reported it.
    if (contents.records.empty() && !is_without_commit(path, contents, storage_paths)) return;
    if (contents.blank() && !owns_data_of_blank(path, contents)) directories.clear();
    for (const offload::StateLog::Record& record : contents.records) {
      CheckpointManifest manifest;
      SavedState state;
      parse_state_record(record.text, path, manifest, state);
      check_record_is_own(state, path);
      const bool owned = owns_data(path, {state.log, state.log_id});
      for (const std::string& file : state.files) {
        if (owned) {
          directories.push_back(fs::path(file).parent_path().string());
        } else {
          others.push_back(file);
        }
      }
    }
    data = data_of_run(run_of_log(path), directories);
  } catch (const Error& error) {
    log(LogLevel::kWarning, std::string(error.what()) + "; that log stays, with its data");
    return;
  }
  std::error_code ignored;  // a file that cannot be removed costs only room
  for (const fs::path& file : data) {
    const bool kept = std::any_of(others.begin(), others.end(), [&](const std::string& other) {
      return fs::equivalent(other, file, ignored);
    });
    if (!kept) {
      fs::remove(file, ignored);
      continue;
    }
    log(LogLevel::kInfo, "'" + file.string() + "' stays: '" + path +
                             "', which is superseded, was a copy of the log that it belongs to");
  }
  fs::remove(path, ignored);
}

}  // namespace

bool owns_data(const std::string& log, const offload::StateLog::Origin& made) {
  std::error_code error;
  // Records of older Sluice releases have no file id, so compare the files at both paths.
  if (made.id.empty()) return fs::equivalent(made.path, log, error);
  const std::string id = offload::file_id(log);
  const auto inode_of = [](const std::string& of) {
    return of.substr(std::min(of.size(), offload::kFileIdDigits / 2));
  };
  if (inode_of(id).empty() || inode_of(id) != inode_of(made.id)) return false;
  if (normal_path(made.path) == normal_path(log)) return true;
  return id == made.id && fs::hard_link_count(log, error) == 1;
}

void retire_other_logs(const std::string& directory, const std::string& own_log,
                       const std::vector<std::string>& storage_paths,
                       const std::vector<std::string>& kept) {
  const std::unique_ptr<offload::StorageEngine> engine = offload::make_storage_engine("posix", {});
  for (const std::string& path : logs_in(directory)) {
    if (fs::path(path).filename() == fs::path(own_log).filename()) continue;
    if (std::find(kept.begin(), kept.end(), path) != kept.end()) continue;
    retire(*engine, path, storage_paths);
  }
}

std::vector<std::string> files_without_commit(const std::string& directory,
                                              const std::vector<std::string>& storage_paths) {
  const std::unique_ptr<offload::StorageEngine> engine = offload::make_storage_engine("posix", {});
  std::vector<std::string> files;
  for (const std::string& path : logs_in(directory)) {
    std::vector<fs::path> data;
    try {
      const offload::StateLog::Contents contents = offload::StateLog::read(*engine, path);
      if (!is_without_commit(path, contents, storage_paths)) continue;
      if (owns_data_of_blank(path, contents)) data = data_of_run(run_of_log(path), storage_paths);
    } catch (const Error&) {
      continue;  // a resume reports it
    }
    for (const fs::path& file : data) files.push_back(file.string());
    files.push_back(path);
  }
  return files;
}

void remove_files_without_commit(const std::string& directory,
                                 const std::vector<std::string>& storage_paths) {
  for (const std::string& file : files_without_commit(directory, storage_paths)) {
    std::error_code ignored;  // a file that cannot be removed costs only room
    fs::remove(file, ignored);
  }
}

void UncommittedFiles::watch(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) watched_[path] = offload::file_id(path);
}

void UncommittedFiles::check_watched() const {
  for (const auto& [path, id] : watched_) {
    if (offload::file_id(path) == id) continue;
    throw Error("'" + path + "' is no longer the file that this run writes its state to: it was " +
                "deleted, moved or replaced while the run went on; nothing can be saved there");
  }
}

UncommittedFiles::~UncommittedFiles() {
  if (kept_) return;
  std::error_code ignored;  // a file that cannot be removed costs only room
  try {
    for (const fs::path& file : data_of_run(run_id_, storage_paths_)) fs::remove(file, ignored);
  } catch (const Error&) {
    return;  // the log stays: it tells of the data
  }
  fs::remove(log_path(), ignored);
}

}  // namespace sluice::checkpoint
