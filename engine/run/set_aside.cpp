#include "engine/run/set_aside.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string_view>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/posix_file.hpp"
#include "base/run_id.hpp"
#include "engine/checkpoint/checkpoint.hpp"
#include "engine/checkpoint/durable_checkpoint.hpp"
#include "engine/config/config.hpp"
#include "engine/run/run_directory.hpp"
#include "engine/run/run_lock.hpp"
#include "engine/train/training_run.hpp"
#include "offload/storage_file.hpp"

namespace sluice::run {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMark = "set-aside";
constexpr std::string_view kMarkText =
    "A fresh start set this run aside. Its checkpoints are in `checkpoints`; --resume looks for "
    "this file.\n";
constexpr const char* kUnfinished = ".tmp";
constexpr int kMostNumber = 1'000'000'000;  // a larger one is somebody else's name

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

bool same_directory(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return fs::equivalent(a, b, error);
}

// Or the same.
bool is_below(const fs::path& path, const fs::path& directory) {
  std::error_code ignored;
  const fs::path real = fs::weakly_canonical(path, ignored);
  const fs::path below = real.lexically_relative(fs::weakly_canonical(directory, ignored));
  return !below.empty() && *below.begin() != "..";
}

fs::path earlier_name(int number) {
  return kEarlierPrefix + std::to_string(number);
}

bool is_filled(const fs::path& directory) {
  std::error_code ignored;
  return fs::is_directory(directory, ignored) && !fs::is_empty(directory, ignored);
}

// 1 of "earlier-1" and of "earlier-1.tmp"; 0 of other names.
int number_of(const fs::path& path) {
  std::string name = path.filename().string();
  if (!name.starts_with(kEarlierPrefix)) return 0;
  if (name.ends_with(kUnfinished)) name.resize(name.size() - std::string_view(kUnfinished).size());
  const char* begin = name.data() + std::string_view(kEarlierPrefix).size();
  int number = 0;
  const auto [end, error] = std::from_chars(begin, name.data() + name.size(), number);
  const bool whole = error == std::errc{} && end == name.data() + name.size();
  return whole && number > 0 && number < kMostNumber ? number : 0;
}

// After all that are here or there: they stand in the order in which they were set aside. An empty
// one there is what a start that was killed had just made.
int next_number(const fs::path& here, const fs::path& there) {
  int last = 0;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(here, ignored)) {
    last = std::max(last, number_of(entry.path()));
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(there, ignored)) {
    if (is_filled(entry.path())) last = std::max(last, number_of(entry.path()));
  }
  return last + 1;
}

// What a start that was killed had begun in `directory`; none: empty. marked: of a run, else of
// checkpoints alone.
fs::path begun_in(const fs::path& directory, bool marked) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename().string();
    if (number_of(entry.path()) == 0 || !name.ends_with(kUnfinished)) continue;
    if (!fs::is_directory(entry.symlink_status(ignored))) continue;
    const bool empty = fs::is_empty(entry.path(), ignored);
    if (empty || is_there(entry.path() / kMark) == marked) return entry.path();
  }
  return {};
}

// Gives it the name that it keeps, and returns that.
fs::path finish(const fs::path& collected) {
  const fs::path directory = collected.parent_path();
  fs::path name = collected;
  name.replace_extension();
  if (is_there(name)) name = directory / earlier_name(next_number(directory, directory));
  rename_durably(collected.string(), name.string());
  return name;
}

// Moves files and says, where that fails, what became of them.
class Moves {
 public:
  // key: "log.dir"; what: "what an earlier run left in 'run'".
  Moves(std::string key, std::string what) : key_(std::move(key)), what_(std::move(what)) {}

  // into: is made under another name and renamed at the end.
  void run(const fs::path& into, const std::function<void()>& act) {
    try {
      act();
    } catch (const fs::filesystem_error& error) {
      fail(into, "'" + error.path1().string() + "': " + error.code().message());
    } catch (const IoError& error) {
      fail(into, error.op + " of '" + error.path +
                     "': " + std::generic_category().message(error.error_number));
    }
  }
  // Nothing is overwritten: the caller has looked.
  void move(const fs::path& from, const fs::path& to) {
    fs::rename(from, to);
    moved_ = true;
  }
  bool moved() const { return moved_; }

 private:
  [[noreturn]] void fail(const fs::path& into, const std::string& why) const {
    const std::string start = key_ + ": " + what_ + " cannot be set aside: " + why;
    if (!moved_) throw InputError(start + "; mend that, or name another " + key_);
    throw Error(start + "; what has been moved is in '" + into.string() +
                "', and the next start goes on with it");
  }

  const std::string key_;
  const std::string what_;
  bool moved_ = false;
};

// The run that stood in log.dir.
class EarlierRun {
 public:
  EarlierRun(const fs::path& log_dir, const std::string& checkpoint_dir, const std::string& own_log)
      : directory_(log_dir),
        new_checkpoint_dir_(checkpoint_dir),
        own_log_(own_log),
        begun_(begun_in(log_dir, true)),
        moves_("log.dir", "what an earlier run left in '" + log_dir.string() + "'") {
    learn();
  }

  // Returns where it is now; empty: there was none.
  fs::path set_aside(const std::vector<std::string>& storage_paths) {
    if (stands_in_both()) {  // a run began here since: what was begun is another's
      moves_.run(begun_, [&] { finish(begun_); });
      begun_.clear();
      learn();
    }
    fs::path now;
    moves_.run(begun_, [&] { lock_and_find(storage_paths); });
    const bool saved = std::any_of(checkpoints_.begin(), checkpoints_.end(),
                                   [](const checkpoint::EarlierCheckpoint& found) { return found.finished; });
    std::error_code error;
    const auto bytes = fs::file_size(directory_ / kEventsFile, error);
    const bool wrote = !error && bytes > 0;
    const int next = next_number(directory_, checkpoints_.empty() ? directory_ : from_);
    const bool begins = begun_.empty();
    const int number = begins || is_filled(home_of(number_of(begun_))) ? next : number_of(begun_);
    if (!saved && !wrote && !begun_holds_anything()) {  // none, or it did nothing
      if (!begins) take_back(number);
      keep_given_config();
      return now;
    }
    if (begins) begun_ = directory_ / (earlier_name(number).string() + kUnfinished);
    try {
      moves_.run(begun_, [&] {
        make_room(number);
        move_all();
        now = finish(begun_);
      });
    } catch (...) {
      if (begins && !moves_.moved()) take_back(number);
      throw;
    }
    return now;
  }

 private:
  // What its own files say, wherever a start that was killed has left them.
  void learn() {
    const auto owner_of = [&](const char* name) {
      return begun_.empty() || is_there(directory_ / name) ? directory_ : begun_;
    };
    const RunsTold told = runs_in(owner_of(kEventsFile).string());
    runs_ = told.ids;
    // One that cannot be read names nothing: then where its successor saves.
    from_ = new_checkpoint_dir_;
    try {
      config::Config config = config::load_config((owner_of(kConfigFile) / kConfigFile).string());
      train::use_run_directory(config, directory_.string());
      from_ = config.checkpoint.dir;
    } catch (const InputError&) {  // as said
    }
    // One that was set aside, moved or copied has them with it, or where its configuration says.
    if (!told.checkpoint_dir.empty() && !is_set_aside(directory_.string()) &&
        same_directory(told.log_dir, directory_) && !same_directory(told.checkpoint_dir, from_)) {
      from_ = told.checkpoint_dir;
    }
  }

  // A run whose event log is gone has no claim but to what lies in its own directory.
  bool is_mine(const checkpoint::EarlierCheckpoint& found) const {
    if (runs_.empty()) return is_below(from_, directory_);
    return found.run_id.empty() || runs_.contains(found.run_id);
  }

  void find() {
    checkpoints_ = checkpoint::earlier_checkpoints(from_.string(), own_log_);
    std::erase_if(checkpoints_, [&](const checkpoint::EarlierCheckpoint& found) { return !is_mine(found); });
    if (runs_.empty()) return;  // no id, and so no claim to what others' starts collected
    for (const fs::path& collected : collected_by_others()) {
      for (checkpoint::EarlierCheckpoint& found : checkpoint::earlier_checkpoints(collected.string(), own_log_)) {
        const auto same_name = [&](const checkpoint::EarlierCheckpoint& other) {
          return other.path.filename() == found.path.filename();
        };
        const bool clashes = std::any_of(checkpoints_.begin(), checkpoints_.end(), same_name);
        if (runs_.contains(found.run_id) && !clashes) checkpoints_.push_back(std::move(found));
      }
    }
  }

  // Directories in from_ that set_aside_others() made, and not what this directory's earlier runs
  // have as their `checkpoints`.
  std::vector<fs::path> collected_by_others() const {
    std::error_code ignored;
    std::vector<fs::path> homes;
    for (const fs::directory_entry& entry : fs::directory_iterator(directory_, ignored)) {
      homes.emplace_back(config::default_checkpoint_dir(entry.path().string()));
    }
    std::vector<fs::path> collected;
    for (const fs::directory_entry& entry : fs::directory_iterator(from_, ignored)) {
      if (number_of(entry.path()) == 0 || is_there(entry.path() / kMark)) continue;
      if (!fs::is_directory(entry.symlink_status(ignored))) continue;
      const bool taken = std::any_of(homes.begin(), homes.end(), [&](const fs::path& home) {
        return same_directory(home, entry.path());
      });
      if (!taken) collected.push_back(entry.path());
    }
    std::sort(collected.begin(), collected.end(), [](const fs::path& a, const fs::path& b) {
      return number_of(a) > number_of(b);  // of two with one name, the newer
    });
    return collected;
  }

  void lock_and_find(const std::vector<std::string>& storage_paths) {
    find();
    if (checkpoints_.empty() || same_directory(from_, new_checkpoint_dir_)) return;
    try {
      if (!same_directory(from_, directory_)) {
        lock_.emplace("checkpoint.dir", from_.string(), make_run_id());
      }
    } catch (const InputError& error) {
      throw InputError(
          "log.dir: the run in '" + directory_.string() +
          "' cannot be set aside with its checkpoints, which are in use: " + error.what());
    }
    checkpoint::remove_logs_without_commit(from_.string(), own_log_, storage_paths);
    find();
  }

  bool stands_in_both() const {
    if (begun_.empty()) return false;
    const auto in_both = [&](const fs::path& name) {
      return is_there(directory_ / name) && is_there(begun_ / name);
    };
    if (std::any_of(kRunFiles.begin(), kRunFiles.end(), in_both)) return true;
    const std::vector<checkpoint::EarlierCheckpoint> found = checkpoint::earlier_checkpoints(from_.string(), own_log_);
    return std::any_of(found.begin(), found.end(), [&](const checkpoint::EarlierCheckpoint& one) {
      return is_mine(one) &&
             is_there(fs::path(config::default_checkpoint_dir(begun_.string())) / one.path.filename());
    });
  }

  // A run writes its events before its configuration: without them it is somebody's own.
  void keep_given_config() {
    const fs::path given = directory_ / kConfigFile;
    if (!is_there(given) || is_there(directory_ / kEventsFile)) return;
    const fs::path kept = given.string() + ".given";
    if (is_there(kept)) {
      throw InputError("log.dir: '" + given.string() + "' was written by no run, and '" +
                       kept.string() +
                       "' is there already; move one of them, or name another log.dir");
    }
    moves_.run(kept, [&] { moves_.move(given, kept); });
    log(LogLevel::kInfo, "'" + given.string() + "', which no run wrote, is now '" + kept.string() +
                             "'; the run's own, with every key, takes its place");
  }

  bool begun_holds_anything() const {
    if (begun_.empty()) return false;
    const fs::path place = config::default_checkpoint_dir(begun_.string());
    return is_filled(place) ||
           std::any_of(kRunFiles.begin(), kRunFiles.end(),
                       [&](const char* name) { return is_there(begun_ / name); });
  }

  // The directory with its mark and a place for checkpoints. First what may be refused.
  void make_room(int number) {
    const fs::path place = config::default_checkpoint_dir(begun_.string());
    const fs::path home = home_of(number);
    const bool filled = is_filled(place);
    if (!checkpoints_.empty() && !filled) make_directories(home.string());
    make_directories(begun_.string());
    if (!is_there(begun_ / kMark)) {
      PosixFile mark = PosixFile::create((begun_ / kMark).string());
      mark.write_all(0, std::as_bytes(std::span(kMarkText.data(), kMarkText.size())));
      mark.sync();
    }
    if (filled) return;
    fs::remove(place);  // made by a start that was killed, for another checkpoint.dir maybe
    if (checkpoints_.empty()) return make_directories(place.string());
    std::error_code error = std::make_error_code(std::errc::cross_device_link);
    if (is_below(from_, directory_)) fs::rename(home, place, error);
    if (!error) return;
    if (error != std::errc::cross_device_link) throw fs::filesystem_error("rename", home, error);
    fs::create_directory_symlink(home, place);
  }

  fs::path home_of(int number) const {
    std::error_code ignored;
    return fs::weakly_canonical(from_, ignored) / earlier_name(number);
  }

  // Nothing has been moved: what was made for it goes again.
  void take_back(int number) const {
    std::error_code ignored;
    fs::remove(config::default_checkpoint_dir(begun_.string()), ignored);
    fs::remove(begun_ / kMark, ignored);
    fs::remove(begun_, ignored);
    if (!checkpoints_.empty()) fs::remove(home_of(number), ignored);
  }

  void move_all() {
    const fs::path place = config::default_checkpoint_dir(begun_.string());
    std::set<fs::path> changed;
    for (const checkpoint::EarlierCheckpoint& found : checkpoints_) {
      moves_.move(found.path, place / found.path.filename());
      changed.insert({place, found.path.parent_path()});
    }
    for (const fs::path& directory : changed) offload::sync_directory_of((directory / kMark).string());
    std::error_code ignored;
    for (const fs::path& directory : changed) {
      if (number_of(directory) > 0 && directory != place)
        fs::remove(directory, ignored);  // if empty
    }
    for (const char* name : kRunFiles) {
      if (is_there(directory_ / name)) moves_.move(directory_ / name, begun_ / name);
    }
    // Last: it told where the checkpoints were. The new run's are where its configuration says.
    fs::remove(directory_ / kMark);
    offload::sync_directory_of((begun_ / kMark).string());
  }

  const fs::path directory_;
  const fs::path new_checkpoint_dir_;
  const std::string own_log_;
  fs::path begun_;  // earlier-N.tmp
  Moves moves_;
  fs::path from_;               // its checkpoint.dir
  std::set<std::string> runs_;  // that wrote there; empty: not known
  std::vector<checkpoint::EarlierCheckpoint> checkpoints_;
  std::optional<RunLock> lock_;  // of from_, where no lock of the new run is
};

bool can_be_resumed(const fs::path& directory) {
  const auto found = checkpoint::earlier_checkpoints(config::default_checkpoint_dir(directory.string()), "");
  return is_there(directory / kConfigFile) &&
         std::any_of(found.begin(), found.end(), [](const checkpoint::EarlierCheckpoint& one) {
           return one.finished &&
                  (checkpoint::run_of_log(one.path.string()).empty() || checkpoint::holds_commit(one.path.string()));
         });
}

// Of runs of other directories that saved where this one is about to. Unfinished ones stay: the
// next save takes them away, as always.
void set_aside_others(const fs::path& checkpoint_dir, const std::string& own_log) {
  std::vector<checkpoint::EarlierCheckpoint> found = checkpoint::earlier_checkpoints(checkpoint_dir.string(), own_log);
  std::erase_if(found, [](const checkpoint::EarlierCheckpoint& one) { return !one.finished; });
  fs::path begun = begun_in(checkpoint_dir, false);
  std::error_code ignored;
  if (!begun.empty() && fs::remove(begun, ignored)) begun.clear();  // it was empty
  if (found.empty() && begun.empty()) return;
  Moves moves("checkpoint.dir", "what another run saved in '" + checkpoint_dir.string() + "'");
  const bool in_both = std::any_of(found.begin(), found.end(), [&](const checkpoint::EarlierCheckpoint& one) {
    return is_there(begun / one.path.filename());
  });
  if (!begun.empty() && in_both) {
    moves.run(begun, [&] { finish(begun); });
    begun.clear();
  }
  if (begun.empty()) {
    const int number = next_number(checkpoint_dir, checkpoint_dir);
    begun = checkpoint_dir / (earlier_name(number).string() + kUnfinished);
  }
  fs::path now;
  moves.run(begun, [&] {
    make_directories(begun.string());
    for (const checkpoint::EarlierCheckpoint& one : found) moves.move(one.path, begun / one.path.filename());
    now = finish(begun);
  });
  std::set<std::string> runs;
  for (const checkpoint::EarlierCheckpoint& one : checkpoint::earlier_checkpoints(now.string(), "")) {
    if (!one.run_id.empty()) runs.insert(one.run_id);
  }
  std::string names;
  for (const std::string& run : runs) names += (names.empty() ? " (" : ", ") + run;
  log(LogLevel::kInfo, "checkpoints of another run" + names + (names.empty() ? "" : ")") +
                           " that lay in '" + checkpoint_dir.string() + "' are now in " +
                           now.string() + "; it goes on with --resume LOGDIR --set " +
                           "checkpoint.dir=" + now.string());
}

}  // namespace

bool is_set_aside(const std::string& directory) {
  std::error_code ignored;
  return fs::is_regular_file(fs::symlink_status(fs::path(directory) / kMark, ignored));
}

std::string told_of_set_aside(const std::string& log_dir) {
  std::vector<fs::path> whole;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(log_dir, ignored)) {
    if (!is_set_aside(entry.path().string())) continue;
    if (entry.path().filename().string().ends_with(kUnfinished)) {
      return "; '" + entry.path().string() +
             "' is of a start that was killed while it set an earlier run aside: the next start "
             "without --resume goes on with that";
    }
    if (can_be_resumed(entry.path())) whole.push_back(entry.path());
  }
  std::sort(whole.begin(), whole.end(),
            [](const fs::path& a, const fs::path& b) { return number_of(a) < number_of(b); });
  std::string names;
  for (const fs::path& path : whole) {
    names += (names.empty() ? "'" : ", '") + path.string() + "'";
  }
  if (names.empty()) return names;
  return "; what a fresh start set aside can be resumed by its own name: " + names;
}

void set_aside_earlier(const std::string& log_dir, const std::string& checkpoint_dir,
                       const std::string& own_log, const std::vector<std::string>& storage_paths) {
  const fs::path now = EarlierRun(log_dir, checkpoint_dir, own_log).set_aside(storage_paths);
  if (!now.empty()) {
    log(LogLevel::kInfo, "an earlier run is now in " + now.string() +
                             (can_be_resumed(now) ? ", and can be resumed there" : ""));
  }
  set_aside_others(checkpoint_dir, own_log);
}

}  // namespace sluice::run
