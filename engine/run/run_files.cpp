#include "engine/run/run_files.hpp"

#include <sys/stat.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>

#include "base/json_text.hpp"
#include "base/log.hpp"
#include "base/posix_file.hpp"
#include "engine/checkpoint/durable_retire.hpp"
#include "engine/checkpoint/rank_path.hpp"

namespace sluice::run {
namespace {

namespace fs = std::filesystem;

// Throws InputError if something other than a regular file is at `path`. In a directory that came
// from another user, a link would lead to another file, and a pipe would never open.
void check_regular(const fs::path& path) {
  std::error_code error;
  const fs::file_type type = fs::symlink_status(path, error).type();
  if (type == fs::file_type::regular || type == fs::file_type::not_found) return;
  throw InputError("'" + path.string() +
                   "' is not a regular file, and a run writes there; remove it");
}

void check_run_files(const fs::path& directory) {
  check_regular(directory / "lock");
  check_regular(directory / kEventsFile);
  for (const char* name : kRunFiles) check_regular(directory / (std::string(name) + ".tmp"));
  const fs::path exported = directory / "huggingface";
  std::error_code error;
  const fs::file_type type = fs::symlink_status(exported, error).type();
  if (type == fs::file_type::directory || type == fs::file_type::not_found) return;
  throw InputError("'" + exported.string() +
                   "' is not a directory, and a run writes there; remove it");
}

// A run that was killed may have left half a line: the next event must not be joined to it.
void cut_unfinished_line(const fs::path& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return;
  auto bytes = static_cast<std::int64_t>(file.tellg());
  const std::int64_t size = bytes;
  for (char last = 0; bytes > 0; --bytes) {
    file.seekg(bytes - 1);
    if (!file.get(last) || last == '\n') break;
  }
  file.close();
  if (bytes < size) fs::resize_file(path, static_cast<std::uintmax_t>(bytes));
}

bool is_durable(const config::Config& config) {
  return config.checkpoint.mode == config::Config::CheckpointMode::kDurable;
}

bool lies_in_run(const config::Config& config) {
  return normal_path(config.checkpoint.dir) ==
         normal_path(config::default_checkpoint_dir(config.log.dir));
}

// A run may be resumed from another working directory: paths that are not below log.dir become
// absolute.
config::Config with_absolute_paths(const config::Config& given) {
  config::Config config = given;
  for (std::string& path : config.data.paths) path = fs::absolute(path).string();
  for (std::string& path : config.memory.storage_paths) {
    const fs::path below = normal_path(path).lexically_relative(normal_path(given.log.dir));
    if (!below.empty() && *below.begin() == "..") path = fs::absolute(path).string();
  }
  return config;
}

}  // namespace

RunFiles::RunFiles(config::Config& config, const config::Config& given, const RunId& run)
    : fresh_(true) {
  try {
    make(given.log.dir, is_durable(given));
    directory_ = claim_run_directory(given.log.dir, is_durable(given));
    made_.push_back(directory_.string());
    place_new_run(config, given, directory_.string(), run);
    make(config.checkpoint.dir, is_durable(given));
    if (!lies_in_run(config)) link_checkpoints(config);
    lock(config, run);
  } catch (...) {
    undo();
    throw;
  }
}

RunFiles::RunFiles(config::Config& config, const config::Config& given, const RunId& run,
                   const std::string& resumed)
    : fresh_(false), directory_(resumed) {
  place_resumed_run(config, given, resumed);
  check_run_files(directory_);
  try {
    make(config.checkpoint.dir, is_durable(given));
    lock(config, run);
  } catch (...) {
    undo();
    throw;
  }
  checkpoint::remove_files_without_commit(config.checkpoint.dir, storage_paths());
}

// A process that was killed in this run may have been this rank.
RunFiles::RunFiles(config::Config& config, const std::string& run, int rank)
    : fresh_(!fs::exists(checkpoint::rank_path(run, rank) + "/" + kEventsFile)),
      directory_(checkpoint::rank_path(run, rank)),
      is_rank_(true) {
  config.memory.storage_paths = checkpoint::rank_paths(config.memory.storage_paths, rank);
  rank_storage_paths_ = config.memory.storage_paths;
  if (is_durable(config))
    config.checkpoint.dir = checkpoint::rank_path(config.checkpoint.dir, rank);
  checkpoints_ = config.checkpoint.dir;
  if (!fresh_) check_run_files(directory_);
  if (!is_durable(config)) return;
  make(config.checkpoint.dir, true);
  checkpoint::remove_files_without_commit(config.checkpoint.dir, rank_storage_paths_);
}

RunFiles::~RunFiles() {
  undo();
}

void RunFiles::undo() noexcept {
  checkpoint_lock_.reset();
  lock_.reset();
  if (begun_) return;
  for (auto path = made_.rbegin(); path != made_.rend(); ++path) {
    std::error_code ignored;  // a directory that holds something stays
    fs::remove(*path, ignored);
  }
}

void RunFiles::make(const std::string& directory, bool durable) {
  const std::vector<std::string> made = make_run_directory(directory, durable);
  made_.insert(made_.end(), made.begin(), made.end());
  // Some file systems give all files one owner, so one that was made just now is not asked.
  if (is_rank_ && made.empty()) check_own_directory(directory);
}

void RunFiles::make_storage(const config::Config& config) {
  for (const std::string& path : config.memory.storage_paths) make(path, is_durable(config));
}

void RunFiles::link_checkpoints(const config::Config& config) {
  // A link within log.dir is relative, so that log.dir can be moved as a whole.
  fs::path target = normal_path(config.checkpoint.dir);
  const fs::path log_dir = normal_path(directory_.string()).parent_path();
  const fs::path below = target.lexically_relative(log_dir);
  if (!below.empty() && *below.begin() != "..") target = fs::path("..") / below;
  const std::string link = config::default_checkpoint_dir(directory_.string());
  std::error_code error;
  fs::create_directory_symlink(target, link, error);
  if (error) {
    throw InputError("checkpoint.dir: the link '" + link + "' cannot be made: " + error.message());
  }
  made_.push_back(link);
}

void RunFiles::lock(const config::Config& config, const RunId& run) {
  checkpoints_ = config.checkpoint.dir;
  lock_.emplace("log.dir", directory_.string(), run, config.memory.storage_paths);
  lock_->keep_record();
  if (lies_in_run(config)) return;
  check_regular(fs::path(config.checkpoint.dir) / "lock");
  checkpoint_lock_.emplace("checkpoint.dir", config.checkpoint.dir, run);
}

void RunFiles::open_events() {
  const fs::path events = directory_ / kEventsFile;
  events_.open(events, std::ios::out | std::ios::app);
  if (!events_) throw IoError("open", events.string(), 0, 0, errno);
  begun_ = true;
  for (const std::string& directory : {directory_.string(), checkpoints_}) {
    places_.emplace_back(directory, identity_of(directory));
  }
}

void RunFiles::begin(const config::Config& given) {
  if (!lock_) make(directory_.string(), is_durable(given));
  const fs::path events = directory_ / kEventsFile;
  if (fresh_) {
    PosixFile::create(events.string());  // with its mode
  } else {
    cut_unfinished_line(events);
  }
  if (!lock_) return open_events();
  text(kConfigFile, config::config_to_toml(with_absolute_paths(given)));
  open_events();
  lock_->drop_record();
  if (!fresh_) return;
  const std::string log_dir = directory_.parent_path().string();
  try {
    point_latest(log_dir);
  } catch (const IoError& error) {  // a file system without links
    log(LogLevel::kWarning,
        "'" + log_dir + "/" + kLatest + "' cannot be led to the new run: " + error.what());
  }
}

void RunFiles::event(const RunEvent& event) {
  errno = 0;
  events_ << json_text(event) << '\n' << std::flush;
  if (events_) return;
  throw RunFileError("'" + path(kEventsFile) + "' cannot be written: " +
                     (errno != 0 ? std::generic_category().message(errno) : "the write failed"));
}

RunFiles::Identity RunFiles::identity_of(const std::string& directory) {
  struct stat status = {};
  if (::stat(directory.c_str(), &status) != 0) return {};
  return {status.st_dev, status.st_ino};
}

void RunFiles::check_in_place() const {
  for (const auto& [directory, identity] : places_) {
    if (identity_of(directory) == identity) continue;
    throw RunMoved(
        "'" + directory +
        "' is no longer the directory of this run: it was moved or removed; nothing more "
        "is saved there");
  }
}

void RunFiles::text(const char* name, const std::string& text) {
  const std::string temporary = path(name) + ".tmp";
  try {
    PosixFile file = PosixFile::create(temporary);
    file.write_all(0, std::as_bytes(std::span(text.data(), text.size())));
    file.sync();
    rename_durably(temporary, path(name));
  } catch (const IoError& error) {
    throw RunFileError("'" + path(name) + "' cannot be written: " + error.what());
  }
}

}  // namespace sluice::run
