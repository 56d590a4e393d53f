#include "engine/run/run_directory.hpp"

#include <cerrno>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/posix_file.hpp"
#include "engine/checkpoint/durable_checkpoint.hpp"
#include "engine/run/set_aside.hpp"
#include "offload/storage_file.hpp"

namespace sluice::run {
namespace {

namespace fs = std::filesystem;

bool is_durable(const config::Config& config) {
  return config.checkpoint.mode == config::Config::CheckpointMode::kDurable;
}

// With what is above it. durable: the names are on the disk when it returns.
void make_directory(const fs::path& path, bool durable) {
  std::vector<fs::path> made;
  fs::path at = normal_path(path.string());
  for (std::error_code error; !fs::exists(at, error) && at.has_relative_path();) {
    made.push_back(at);
    at = at.parent_path();
  }
  try {
    make_directories(path.string());
  } catch (const IoError& error) {
    throw InputError("'" + path.string() +
                     "' cannot be made: " + std::generic_category().message(error.error_number));
  }
  for (const fs::path& name : made) {
    if (durable) offload::sync_directory_of(name.string());
  }
}

const std::string& made(const std::string& directory, bool durable) {
  make_directory(directory, durable);
  return directory;
}

// What a run opens to write. In a directory that came from somebody else a link would lead to
// another file, and a pipe would never open.
void check_regular(const fs::path& path) {
  std::error_code error;
  const fs::file_type type = fs::symlink_status(path, error).type();
  if (type == fs::file_type::regular || type == fs::file_type::not_found) return;
  throw InputError("'" + path.string() + "' is no regular file, and a run writes there; remove it");
}

void check_run_files(const fs::path& directory) {
  check_regular(directory / "lock");
  check_regular(directory / kEventsFile);
  for (const char* name : kRunFiles) check_regular(directory / (std::string(name) + ".tmp"));
}

// Its own, once the files there have been looked at.
const std::string& checked(const std::string& directory) {
  check_run_files(directory);
  return directory;
}

// Of its own only where it is another directory than log.dir.
void lock_checkpoints(std::optional<RunLock>& lock, const config::Config& config, const RunId& run) {
  const std::string& directory = config.checkpoint.dir;
  if (fs::equivalent(directory, config.log.dir)) return;
  check_regular(fs::path(directory) / "lock");
  lock.emplace("checkpoint.dir", directory, run);
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

}  // namespace

RunsTold runs_in(const std::string& directory) {
  using Json = nlohmann::json;
  RunsTold told;
  const fs::path path = fs::path(directory) / kEventsFile;
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return told;
  std::ifstream file(path, std::ios::binary);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(R"({"event":"plan")")) continue;
    const Json event = Json::parse(line, nullptr, false);
    if (!event.is_object()) continue;
    const auto word = [&](const char* name) {
      const auto found = event.find(name);
      return found == event.end() || !found->is_string() ? "" : found->get<std::string>();
    };
    for (const char* name : {"run_id", "resumed_run_id"}) {
      if (parse_run_id(word(name))) told.ids.insert(word(name));
    }
    told.log_dir = word("log_dir");
    told.checkpoint_dir = word("checkpoint_dir");
  }
  return told;
}

RunFiles::RunFiles(const config::Config& config, const RunId& run, bool uses_storage)
    : directory_(made(config.log.dir, is_durable(config))),
      lock_("log.dir", checked(config.log.dir), run, config.memory.storage_paths) {
  const bool durable = is_durable(config);
  if (uses_storage) {
    for (const std::string& path : config.memory.storage_paths) make_directory(path, durable);
  }
  make_directory(config.checkpoint.dir, durable);
  lock_checkpoints(checkpoint_lock_, config, run);
}

void RunFiles::remove_uncommitted(const config::Config& config, const RunId& run) {
  const std::string& directory = config.log.dir;
  // Nobody is kept waiting for a lock where there is nothing to remove.
  if (checkpoint::files_without_commit(config.checkpoint.dir, config.memory.storage_paths).empty()) return;
  check_run_files(directory);
  const bool told_of_earlier = RunLock::look(directory).exists;
  RunLock lock("log.dir", directory, run, config.memory.storage_paths);
  if (told_of_earlier) lock.keep_record();
  std::optional<RunLock> checkpoint_lock;
  lock_checkpoints(checkpoint_lock, config, run);
  checkpoint::remove_logs_without_commit(config.checkpoint.dir, {}, lock.storage_paths());
}

void RunFiles::begin(const config::Config& config, bool fresh, const std::string& own_log) {
  const fs::path events = directory_ / kEventsFile;
  if (fresh) {
    checkpoint::remove_logs_without_commit(config.checkpoint.dir, own_log, storage_paths());
    set_aside_earlier(directory_.string(), config.checkpoint.dir, own_log, storage_paths());
    PosixFile::create(events.string());  // with its mode
  } else {
    cut_unfinished_line(events);
  }
  text(kConfigFile, config::config_to_toml(config));
  events_.open(events, std::ios::out | std::ios::app);
  if (!events_) throw IoError("open", events.string(), 0, 0, errno);
}

void RunFiles::event(const train::RunEvent& event) {
  events_ << event.dump() << '\n' << std::flush;
  if (!events_) throw IoError("write", path(kEventsFile), 0, 0, errno);
}

void RunFiles::sync_events() {
  PosixFile::open_read(path(kEventsFile)).sync();
}

void RunFiles::text(const char* name, const std::string& text) {
  const std::string temporary = path(name) + ".tmp";
  PosixFile file = PosixFile::create(temporary);
  file.write_all(0, std::as_bytes(std::span(text.data(), text.size())));
  rename_durably(temporary, path(name));
}

}  // namespace sluice::run
