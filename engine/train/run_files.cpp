#include "engine/train/run_files.hpp"

#include <cerrno>
#include <span>
#include <system_error>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "engine/train/checkpoint.hpp"
#include "engine/train/durable_checkpoint.hpp"
#include "engine/train/posix_file.hpp"
#include "offload/storage_file.hpp"

namespace sluice {
namespace {

namespace fs = std::filesystem;

bool is_durable(const Config& config) {
  return config.checkpoint.mode == Config::CheckpointMode::kDurable;
}

// With what is above it. durable: the names are on the disk when it returns.
void make_directory(const fs::path& path, bool durable) {
  std::vector<fs::path> made;
  fs::path at = fs::absolute(path).lexically_normal();
  if (!at.has_filename()) at = at.parent_path();
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
    if (durable) sync_directory_of(name.string());
  }
}

const std::string& made(const std::string& directory, bool durable) {
  make_directory(directory, durable);
  return directory;
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

// Where checkpoints lie in what is set aside.
constexpr const char* kCheckpoints = "checkpoints";

fs::path without_trailing_slash(const fs::path& path) {
  return path.has_filename() ? path : path.parent_path();
}

// What an earlier run left goes into DIRECTORY/earlier-N, from where it can be resumed: a fresh
// start takes nothing from anybody. Checkpoints that lie elsewhere, maybe on another file system,
// stay beside where they were, as CHECKPOINTS.N, and earlier-N has a link to them.
void set_aside_earlier(const fs::path& directory, const fs::path& checkpoint_dir,
                       const std::string& own_log) {
  const std::vector<fs::path> checkpoints = earlier_checkpoints(checkpoint_dir.string(), own_log);
  std::error_code error;
  const auto bytes = fs::file_size(directory / "events.jsonl", error);
  // None, or one that ended before it did anything.
  if (checkpoints.empty() && (error || bytes == 0)) return;
  const fs::path from = without_trailing_slash(fs::canonical(checkpoint_dir));
  const fs::path below = from.lexically_relative(fs::canonical(directory));
  const bool elsewhere = below.empty() || *below.begin() == "..";
  fs::path aside;
  fs::path beside;
  for (int i = 1; aside.empty() || fs::exists(aside) || fs::exists(beside); ++i) {
    aside = directory / (std::string(kEarlierPrefix) + std::to_string(i));
    beside = from.string() + "." + std::to_string(i);
  }
  make_directories(aside.string());
  if (!checkpoints.empty()) {
    const fs::path target = elsewhere ? beside : aside / kCheckpoints;
    make_directories(target.string());
    if (elsewhere) fs::create_directory_symlink(target, aside / kCheckpoints);
    for (const fs::path& path : checkpoints) fs::rename(path, target / path.filename());
  }
  for (const char* name : {"config.toml", "plan.json", "plan_trace.json", "trace.json",
                           "report.html", "weights.safetensors", "events.jsonl"}) {
    if (fs::exists(directory / name)) fs::rename(directory / name, aside / name);
  }
  log(LogLevel::kInfo, "an earlier run is now in " + aside.string() +
                           (checkpoints.empty() ? "" : ", and can be resumed there"));
}

}  // namespace

RunFiles::RunFiles(const Config& config, const RunId& run, bool uses_storage)
    : directory_(made(config.log.dir, is_durable(config))),
      lock_("log.dir", config.log.dir, run, config.memory.storage_paths) {
  const bool durable = is_durable(config);
  if (uses_storage) {
    for (const std::string& path : config.memory.storage_paths) make_directory(path, durable);
  }
  make_directory(config.checkpoint.dir, durable);
  if (!fs::equivalent(config.checkpoint.dir, config.log.dir)) {
    checkpoint_lock_.emplace("checkpoint.dir", config.checkpoint.dir, run);
  }
}

void RunFiles::begin(const Config& config, bool fresh, const std::string& own_log) {
  const fs::path events = directory_ / "events.jsonl";
  if (fresh) {
    remove_logs_without_commit(config.checkpoint.dir, own_log, storage_paths());
    set_aside_earlier(directory_, config.checkpoint.dir, own_log);
    PosixFile::create(events.string());  // with its mode
  } else {
    cut_unfinished_line(events);
  }
  text("config.toml", config_to_toml(config));
  events_.open(events, std::ios::out | std::ios::app);
  if (!events_) throw IoError("open", events.string(), 0, 0, errno);
}

void RunFiles::event(const RunEvent& event) {
  events_ << event.dump() << '\n' << std::flush;
  if (!events_) throw IoError("write", path("events.jsonl"), 0, 0, errno);
}

void RunFiles::text(const char* name, const std::string& text) {
  const std::string temporary = path(name) + ".tmp";
  PosixFile file = PosixFile::create(temporary);
  file.write_all(0, std::as_bytes(std::span(text.data(), text.size())));
  rename_durably(temporary, path(name));
}

}  // namespace sluice
