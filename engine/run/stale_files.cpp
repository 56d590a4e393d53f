#include "engine/run/stale_files.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <optional>
#include <set>

#include "base/directory.hpp"
#include "base/error.hpp"
#include "base/run_id.hpp"
#include "engine/checkpoint/checkpoint.hpp"
#include "engine/checkpoint/durable_retire.hpp"
#include "engine/checkpoint/rank_path.hpp"
#include "engine/config/config.hpp"
#include "engine/run/run_files.hpp"
#include "engine/run/run_lock.hpp"
#include "offload/striped_space.hpp"

namespace sluice::run {
namespace {

namespace fs = std::filesystem;

// A directory may hold log.dirs, some levels down, and those hold runs.
constexpr int kMostDepth = 4;

// The run id in a name as StripedSpace gives it, sluice-<run id>-<index>.state; none in others.
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
  std::error_code ignored;  // a file that goes meanwhile counts nothing
  if (!fs::is_directory(fs::symlink_status(path, ignored))) {
    const auto bytes = fs::file_size(path, ignored);
    return ignored ? 0 : bytes;
  }
  std::uint64_t sum = 0;
  for (const fs::path& entry : list_directory(path)) sum += bytes_under(entry);
  return sum;
}

bool is_directory_itself(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(fs::symlink_status(path, ignored));
}

// Whether a run, and no other program, made the directory: a run has begun there, or a run wrote
// the lock.
bool belongs_to_a_run(const fs::path& path) {
  if (is_run_directory(path.string())) return true;
  try {
    std::error_code ignored;
    if (!fs::is_regular_file(fs::symlink_status(path / "lock", ignored))) return false;
    const RunLock::State state = RunLock::look(path.string());
    return state.held || state.holder.has_value();
  } catch (const IoError&) {
    return false;
  }
}

// Temporary names, which a run renames once the file is whole.
bool is_unfinished(const std::string& name) {
  return std::any_of(kRunFiles.begin(), kRunFiles.end(),
                     [&](const char* file) { return name == std::string(file) + ".tmp"; });
}

// Whether `path` is older than a start takes from one of its steps to the next. The maker of a
// younger one may live, and no lock says so.
bool is_settled(const fs::path& path) {
  constexpr std::time_t kSeconds = 60;
  struct stat status = {};
  return ::lstat(path.c_str(), &status) == 0 &&
         status.st_mtim.tv_sec <= std::time(nullptr) - kSeconds;
}

// Links under the temporary names that they have until they replace another, NAME.<run id>.tmp.
std::vector<fs::path> unfinished_links(const fs::path& directory, const std::string& name) {
  std::vector<fs::path> links = list_directory(directory);
  std::erase_if(links, [&](const fs::path& path) {
    const std::string id = path.stem().extension().string();
    std::error_code ignored;
    return path.extension() != ".tmp" || path.stem().stem() != name || id.size() < 2 ||
           !parse_run_id(id.substr(1)) || !fs::is_symlink(fs::symlink_status(path, ignored)) ||
           !is_settled(path);
  });
  return links;
}

// The ranks that have a directory beneath one of these: the first, and R of each rank-R.
std::set<int> ranks_beneath(const std::vector<std::string>& directories) {
  std::set<int> ranks{0};
  for (const std::string& directory : directories) {
    for (const fs::path& path : list_directory(directory)) {
      const auto rank = checkpoint::rank_of_directory(path.filename().string());
      if (rank && is_directory_itself(path)) ranks.insert(*rank);
    }
  }
  return ranks;
}

// Looks through one run.
class Sweeper {
 public:
  Sweeper(const fs::path& directory, bool remove) : remove_(remove) {
    found_.directory = directory.string();
  }

  // A path that cannot be read ends the examination of this run; the files found so far are listed.
  StaleRun sweep() {
    try {
      examine();
    } catch (const Error& error) {
      found_.damage = error.what();
    }
    return found_;
  }

 private:
  void examine() {
    const RunLock::State run = RunLock::look(found_.directory);
    if (run.held) {
      found_.in_use_by = run.holder ? run.holder->describe() : "another process";
      return;
    }
    const config::Config config = config_of_run();
    std::vector<std::string> runs;  // the processes that were killed here
    std::vector<std::string> paths = config.memory.storage_paths;
    if (run.holder) {
      runs = run.holder->earlier_runs;
      runs.push_back(run.holder->run_id);
      // The run may have used other paths than its configuration names now.
      paths.insert(paths.end(), run.holder->storage_paths.begin(), run.holder->storage_paths.end());
      remove_repeated(paths);
    }
    // The lock is held while files are removed. Then it goes too, unless it is the only record of
    // state that stays, or a path could not be read and may hold some.
    found_.removed = remove_;
    std::optional<RunLock> lock;
    if (remove_ && !take(lock, found_.directory)) return;
    if (lock) lock->keep_record();
    // The ranks of a run share its lock, and each has files of its own.
    std::vector<std::string> shared = paths;
    shared.insert(shared.end(), {found_.directory, config.checkpoint.dir});
    const std::set<int> ranks = ranks_beneath(shared);
    std::vector<StaleFile> kept;
    for (const int rank : ranks) {
      const std::vector<StaleFile> data =
          data_without_log(checkpoint::rank_path(config.checkpoint.dir, rank),
                           checkpoint::rank_paths(paths, rank), runs);
      kept.insert(kept.end(), data.begin(), data.end());
    }
    note_lock(found_.directory, run, kept.empty());
    for (const int rank : ranks) unfinished_files(checkpoint::rank_path(found_.directory, rank));
    const fs::path exported = fs::path(found_.directory) / "huggingface";
    if (is_directory_itself(exported)) {
      for (const char* name : {"config.json.tmp", "model.safetensors.tmp"}) {
        const fs::path path = exported / name;
        std::error_code ignored;
        if (fs::is_regular_file(fs::symlink_status(path, ignored))) {
          add(path, "a file that was being written");
        }
      }
    }
    for (const int rank : ranks) {
      for (const std::string& path : checkpoint::rank_paths(paths, rank)) storage_files(path, runs);
    }
    found_.files.insert(found_.files.end(), kept.begin(), kept.end());
    checkpoints(config.checkpoint.dir, paths, ranks);
    if (!kept.empty()) return;
    if (lock) lock->drop_record();
  }

  void unfinished_files(const fs::path& directory) {
    for (const fs::path& path : list_directory(directory)) {
      if (is_unfinished(path.filename().string()) && fs::is_regular_file(fs::symlink_status(path)))
        add(path, "a file that was being written");
    }
  }

  static void remove_repeated(std::vector<std::string>& paths) {
    for (std::size_t i = 0; i < paths.size(); ++i) {
      std::error_code ignored;
      paths.erase(std::remove_if(paths.begin() + static_cast<std::ptrdiff_t>(i) + 1, paths.end(),
                                 [&](const std::string& other) {
                                   return fs::equivalent(other, paths[i], ignored);
                                 }),
                  paths.end());
    }
  }

  // A run without a readable configuration has its usual places.
  config::Config config_of_run() const {
    config::Config given;
    given.log.dir = found_.directory;
    given.checkpoint.dir = config::default_checkpoint_dir(found_.directory);
    given.memory.storage_paths = {found_.directory + "/storage"};
    try {
      given = config::load_config((fs::path(found_.directory) / kConfigFile).string());
    } catch (const Error&) {  // none, or a damaged one
    }
    config::Config config = given;
    try {
      place_resumed_run(config, given, found_.directory);
    } catch (const InputError&) {  // its checkpoints lead to a directory that is not there
    }
    return config;
  }

  bool take(std::optional<RunLock>& lock, const std::string& directory) {
    try {
      lock.emplace("--clean", directory, make_run_id());  // keeps the paths that stand there
      return true;
    } catch (const InputError&) {
      found_.in_use_by = "a run that has just begun";
      return false;
    }
  }

  // removable: false if the lock is the only record of data that stay.
  void note_lock(const std::string& directory, const RunLock::State& state, bool removable) {
    if (!state.exists) return;
    const std::string holder = state.holder ? state.holder->describe() : "a run";
    const char* kept =
        removable ? "" : "; it alone tells which run the state is of that is only listed";
    found_.files.push_back(
        {directory + "/lock", "the lock of " + holder + ", which has ended" + kept, 0, removable});
  }

  void add(const fs::path& path, const char* what) {
    found_.files.push_back({path.string(), what, bytes_under(path), true});
    if (remove_) fs::remove_all(path);
  }

  // Below the run's directory, all storage files belong to the run. Elsewhere, only those do that
  // carry a run id from its lock.
  void storage_files(const fs::path& directory, const std::vector<std::string>& runs) {
    const fs::path below = fs::path(directory).lexically_relative(found_.directory);
    const bool own = !below.empty() && *below.begin() != "..";
    for (const fs::path& path : list_directory(directory)) {
      const auto id = run_of_storage_file(path.filename().string());
      if (id && (own || std::find(runs.begin(), runs.end(), *id) != runs.end())) {
        add(path, "a storage file");
      }
    }
  }

  // Committed state of a durable run can be found only through its log. It is listed but not
  // removed: if the log was moved and not deleted, the run can still be resumed.
  static std::vector<StaleFile> data_without_log(const std::string& checkpoint_dir,
                                                 const std::vector<std::string>& paths,
                                                 const std::vector<std::string>& runs) {
    std::vector<StaleFile> found;
    for (const std::string& run : runs) {
      if (fs::exists(checkpoint::state_log_path(checkpoint_dir, run))) continue;
      for (const fs::path& file : checkpoint::data_of_run(run, paths)) {
        found.push_back({file.string(),
                         "state of a durable run whose log is not here; remove it yourself if the "
                         "log was deleted, not moved",
                         bytes_under(file), false});
      }
    }
    return found;
  }

  void checkpoints(const std::string& directory, const std::vector<std::string>& storage_paths,
                   const std::set<int>& ranks) {
    std::error_code error;
    if (!fs::is_directory(directory, error)) return;
    const std::string usual = config::default_checkpoint_dir(found_.directory);
    std::optional<RunLock> lock;
    if (!is_directory_itself(usual)) {  // they lie elsewhere, and have a lock of their own
      const RunLock::State state = RunLock::look(directory);
      if (state.held || (remove_ && !take(lock, directory))) return;
      note_lock(directory, state, true);
    }
    for (const int rank : ranks) {
      const std::string own = checkpoint::rank_path(directory, rank);
      for (const std::string& file :
           checkpoint::files_without_commit(own, checkpoint::rank_paths(storage_paths, rank))) {
        add(file, "of a durable run that committed nothing");
      }
    }
    for (const fs::path& path : list_directory(directory)) {
      if (checkpoint::is_unfinished_checkpoint(path) && is_directory_itself(path)) {
        add(path, "a checkpoint that was not finished");
      }
    }
  }

  const bool remove_;
  StaleRun found_;
};

std::vector<fs::path> directories_in(const fs::path& directory) {
  std::vector<fs::path> paths;
  try {
    paths = list_directory(directory);
  } catch (const IoError&) {  // one that this user may not read holds none of their runs
  }
  std::erase_if(paths, [](const fs::path& path) { return !is_directory_itself(path); });
  return paths;
}

// `latest` in a log.dir belongs to no single run.
void sweep_links(const fs::path& log_dir, bool remove, std::vector<StaleRun>& all) {
  StaleRun found;
  found.directory = log_dir.string();
  found.removed = remove;
  try {
    for (const fs::path& path : unfinished_links(log_dir, kLatest)) {
      found.files.push_back({path.string(), "a link that was being replaced", 0, true});
      std::error_code error;
      if (remove && !fs::remove(path, error)) found.damage = path.string() + ": " + error.message();
    }
  } catch (const IoError&) {  // one that this user may not read holds none of their runs
  }
  if (!found.files.empty()) all.push_back(found);
}

void sweep_below(const fs::path& directory, int depth, bool remove, std::vector<StaleRun>& all) {
  if (belongs_to_a_run(directory)) {
    all.push_back(Sweeper(directory, remove).sweep());
    return;
  }
  sweep_links(directory, remove, all);
  if (depth == kMostDepth) return;
  for (const fs::path& path : directories_in(directory)) {
    sweep_below(path, depth + 1, remove, all);
  }
}

}  // namespace

std::vector<StaleRun> find_stale_files(const std::vector<std::string>& directories, bool remove) {
  std::vector<StaleRun> all;
  for (const std::string& directory : directories) {
    std::error_code error;
    if (!fs::is_directory(directory, error)) {
      throw InputError("--clean: '" + directory +
                       "' is not a directory; name a run's, or one that runs lie in");
    }
    sweep_below(directory, 0, remove, all);
  }
  return all;
}

}  // namespace sluice::run
