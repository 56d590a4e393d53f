#include "engine/run/run_leftovers.hpp"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <optional>

#include "base/error.hpp"
#include "base/run_id.hpp"
#include "engine/checkpoint/durable_checkpoint.hpp"
#include "engine/config/config.hpp"
#include "engine/run/run_directory.hpp"
#include "engine/run/run_lock.hpp"
#include "engine/run/set_aside.hpp"
#include "engine/train/training_run.hpp"
#include "offload/striped_space.hpp"

namespace sluice::run {
namespace {

namespace fs = std::filesystem;

// As StripedSpace names its files: sluice-<run id>-<index>.state. The run id; none for other names.
std::optional<std::string> run_of_storage_file(const std::string& name) {
  constexpr std::string_view kBegin = "sluice-";
  constexpr std::string_view kEnd = offload::StripedSpace::kScratchSuffix;
  constexpr std::size_t kIdDigits = 32;
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) return std::nullopt;
  const std::string middle = name.substr(kBegin.size(), name.size() - kBegin.size() - kEnd.size());
  if (middle.size() < kIdDigits + 2 || middle[kIdDigits] != '-') return std::nullopt;
  const std::string index = middle.substr(kIdDigits + 1);
  if (index.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  const std::string id = middle.substr(0, kIdDigits);
  return parse_run_id(id) ? std::optional(id) : std::nullopt;
}

std::uint64_t bytes_under(const fs::path& path) {
  std::error_code ignored;  // what goes meanwhile counts nothing
  if (!fs::is_directory(fs::symlink_status(path, ignored))) {
    const auto bytes = fs::file_size(path, ignored);
    return ignored ? 0 : bytes;
  }
  std::uint64_t sum = 0;
  for (const auto& entry : fs::recursive_directory_iterator(path, ignored)) {
    if (entry.is_regular_file(ignored)) sum += entry.file_size(ignored);
  }
  return sum;
}

std::vector<fs::path> entries_of(const fs::path& directory) {
  std::vector<fs::path> entries;
  std::error_code ignored;  // a directory that is not there holds nothing
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    entries.push_back(entry.path());
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

// What a run makes, and no other program: a lock that says who held it, or its files.
bool is_run_directory(const fs::path& path) {
  std::error_code ignored;  // what cannot be looked into is none
  const auto is_file = [&](const char* name) {
    return fs::is_regular_file(fs::symlink_status(path / name, ignored));
  };
  if (is_file(kConfigFile) && is_file(kEventsFile)) return true;
  if (!is_file("lock")) return false;
  try {
    const RunLock::State state = RunLock::look(path.string());
    return state.held || state.holder.has_value();
  } catch (const IoError&) {
    return false;
  }
}

// Names under which a run writes what it then renames.
bool is_unfinished(const std::string& name) {
  return name == "manifest.json.tmp" ||
         std::any_of(kRunFiles.begin(), kRunFiles.end(),
                     [&](const char* file) { return name == std::string(file) + ".tmp"; });
}

// Set aside, or begun to be.
bool is_earlier(const fs::path& path) {
  return path.filename().string().starts_with(kEarlierPrefix) || is_set_aside(path.string());
}

// Looks through one run.
class Sweeper {
 public:
  Sweeper(const fs::path& directory, bool remove) : remove_(remove) {
    found_.directory = directory.string();
  }

  RunLeftovers sweep() {
    const RunLock::State run = RunLock::look(found_.directory);
    if (run.held) {
      found_.in_use_by = run.holder ? run.holder->describe() : "another process";
      return found_;
    }
    const config::Config config = config_of_run();
    const std::vector<std::string> paths = storage_paths_of(config, run);
    std::vector<std::string> runs;  // that were killed here
    if (run.holder) {
      runs = run.holder->earlier_runs;
      runs.push_back(run.holder->run_id);
    }
    // Held while anything is removed, and gone with its file then, but for what it alone tells.
    std::optional<RunLock> lock;
    if (remove_ && !take(lock, found_.directory)) return found_;
    const std::vector<Leftover> kept = data_without_log(config.checkpoint.dir, paths, runs);
    if (lock && !kept.empty()) lock->keep_record();
    note_lock(found_.directory, run, kept.empty());
    unfinished_files(found_.directory);
    for (const std::string& path : paths) storage_files(path, runs);
    found_.leftovers.insert(found_.leftovers.end(), kept.begin(), kept.end());
    checkpoints(config.checkpoint.dir, paths);
    found_.removed = remove_;
    return found_;
  }

 private:
  // config.toml may be of another run than the one that was killed.
  static std::vector<std::string> storage_paths_of(const config::Config& config,
                                                   const RunLock::State& lock) {
    std::vector<std::string> paths = config.memory.storage_paths;
    if (!lock.holder) return paths;
    std::error_code ignored;
    for (const std::string& path : lock.holder->storage_paths) {
      const bool known = std::any_of(paths.begin(), paths.end(), [&](const std::string& other) {
        return fs::equivalent(other, path, ignored);
      });
      if (!known) paths.push_back(path);
    }
    return paths;
  }

  // The places of a run whose configuration cannot be read are those below its directory.
  config::Config config_of_run() const {
    try {
      config::Config config = config::load_config((fs::path(found_.directory) / kConfigFile).string());
      train::use_run_directory(config, found_.directory);
      return config;
    } catch (const Error&) {
      config::Config config;
      config.memory.storage_paths = {found_.directory + "/storage"};
      config.checkpoint.dir = config::default_checkpoint_dir(found_.directory);
      return config;
    }
  }

  bool take(std::optional<RunLock>& lock, const std::string& directory) {
    try {
      lock.emplace("--clean", directory, make_run_id());  // keeps the paths that stand there
      return true;
    } catch (const InputError&) {  // a run has begun since
      found_.in_use_by = "a run that has just begun";
      return false;
    }
  }

  // removable: else it is all that tells of data that stay.
  void note_lock(const std::string& directory, const RunLock::State& state, bool removable) {
    if (!state.exists) return;
    const std::string who = state.holder ? state.holder->describe() : "a run";
    const char* kept = removable ? "" : "; it alone tells whose the state is that is only listed";
    found_.leftovers.push_back(
        {directory + "/lock", "the lock of " + who + ", which has ended" + kept, 0, removable});
  }

  void add(const fs::path& path, const char* what) {
    found_.leftovers.push_back({path.string(), what, bytes_under(path), true});
    if (remove_) fs::remove_all(path);
  }

  void unfinished_files(const fs::path& directory) {
    for (const fs::path& path : entries_of(directory)) {
      if (is_unfinished(path.filename().string()) &&
          fs::is_regular_file(fs::symlink_status(path))) {
        add(path, "a file that was being written");
      }
    }
  }

  // Below the run's directory they are this run's or an earlier one's; elsewhere, those of the runs
  // that stand in the lock.
  void storage_files(const fs::path& directory, const std::vector<std::string>& runs) {
    const fs::path below = fs::path(directory).lexically_relative(found_.directory);
    const bool own = !below.empty() && *below.begin() != "..";
    for (const fs::path& path : entries_of(directory)) {
      const auto id = run_of_storage_file(path.filename().string());
      if (!id) continue;
      if (own || std::find(runs.begin(), runs.end(), *id) != runs.end()) {
        add(path, "a storage file");
      }
    }
  }

  // Where logs of this directory's runs may lie: in its checkpoint.dir, in those of the runs that
  // fresh starts set aside, and in what was set aside there.
  std::vector<fs::path> log_directories(const fs::path& checkpoint_dir) const {
    std::vector<fs::path> directories{checkpoint_dir};
    for (const fs::path& path : entries_of(found_.directory)) {
      if (!is_earlier(path)) continue;
      directories.emplace_back(config::default_checkpoint_dir(path.string()));
      try {
        directories.emplace_back(config::load_config((path / kConfigFile).string()).checkpoint.dir);
      } catch (const InputError&) {  // it names none
      }
    }
    const std::size_t count = directories.size();
    for (std::size_t i = 0; i < count; ++i) {
      for (const fs::path& path : entries_of(directories[i])) {
        if (is_earlier(path)) directories.push_back(path);
      }
    }
    return directories;
  }

  // State that a durable run committed is found by its log alone. Only listed: where the log was
  // moved, and not deleted, the run can still be resumed.
  std::vector<Leftover> data_without_log(const fs::path& checkpoint_dir,
                                         const std::vector<std::string>& paths,
                                         const std::vector<std::string>& runs) const {
    std::vector<Leftover> found;
    const std::vector<fs::path> directories = log_directories(checkpoint_dir);
    for (const std::string& run : runs) {
      const bool logged =
          std::any_of(directories.begin(), directories.end(), [&](const fs::path& directory) {
            return fs::exists(checkpoint::state_log_path(directory.string(), run));
          });
      if (logged) continue;
      for (const fs::path& file : checkpoint::data_of_run(run, paths)) {
        found.push_back({file.string(),
                         "state of a durable run whose log is not here; remove it yourself if the "
                         "log was deleted, not moved",
                         bytes_under(file), false});
      }
    }
    return found;
  }

  void checkpoints(const std::string& directory, const std::vector<std::string>& storage_paths) {
    std::error_code error;
    if (!fs::is_directory(directory, error)) return;
    const bool apart = !fs::equivalent(directory, found_.directory);
    std::optional<RunLock> lock;
    if (apart) {
      const RunLock::State state = RunLock::look(directory);
      if (state.held) return;  // by another run that saves there now
      if (remove_ && !take(lock, directory)) return;
      note_lock(directory, state, true);
      unfinished_files(directory);
    }
    for (const std::string& file : checkpoint::files_without_commit(directory, storage_paths)) {
      add(file, "of a durable run that committed nothing");
    }
    for (const fs::path& path : entries_of(directory)) {
      const std::string name = path.filename().string();
      if (name.starts_with("step-") && name.ends_with(".tmp") && fs::is_directory(path)) {
        add(path, "a checkpoint that was not finished");
      }
    }
  }

  const bool remove_;
  RunLeftovers found_;
};

}  // namespace

std::vector<RunLeftovers> find_leftovers(const std::vector<std::string>& directories, bool remove) {
  std::vector<RunLeftovers> all;
  const std::function<bool(const fs::path&)> sweep = [&](const fs::path& directory) {
    if (!is_run_directory(directory)) return false;
    all.push_back(Sweeper(directory, remove).sweep());
    // What was set aside there may have been resumed, and killed, by itself.
    for (const fs::path& path : entries_of(directory)) {
      if (is_earlier(path) && fs::is_directory(fs::symlink_status(path))) sweep(path);
    }
    return true;
  };
  for (const std::string& directory : directories) {
    std::error_code error;
    if (!fs::is_directory(directory, error)) {
      throw InputError("--clean: '" + directory +
                       "' is no directory; name a run's, or one that runs lie in");
    }
    if (sweep(directory)) continue;  // what lies in a run is that run's
    for (const fs::path& path : entries_of(directory)) {
      if (fs::is_directory(fs::symlink_status(path))) sweep(path);
    }
  }
  return all;
}

}  // namespace sluice::run
