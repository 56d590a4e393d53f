#include "engine/run/run_directory.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>

#include "base/directory.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/posix_file.hpp"
#include "offload/storage_file.hpp"

namespace sluice::run {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLeastDigits = 4;
constexpr std::size_t kMostDigits = 9;  // longer names are not ours

std::optional<std::uint32_t> number_of(const fs::path& path) {
  const std::string name = path.filename().string();
  if (name.size() < kLeastDigits || name.size() > kMostDigits) return std::nullopt;
  std::uint32_t number = 0;
  const char* const end = name.data() + name.size();
  const auto [last, error] = std::from_chars(name.data(), end, number);
  return error == std::errc{} && last == end ? std::optional(number) : std::nullopt;
}

std::string name_of_number(std::uint32_t number) {
  const std::string digits = std::to_string(number);
  return std::string(kLeastDigits - std::min(kLeastDigits, digits.size()), '0') + digits;
}

std::uint32_t next_number(const std::string& log_dir) {
  std::uint32_t last = 0;
  for (const fs::path& path : list_directory(log_dir)) {
    last = std::max(last, number_of(path).value_or(0));
  }
  return last + 1;
}

// `path` itself, or the directory to which a link of that name leads. `latest` moves on with the
// next start, and a run must not move with it.
std::string without_link(const std::string& path) {
  const fs::path name = normal_path(path);
  std::error_code error;
  if (!fs::is_symlink(fs::symlink_status(name, error))) return path;
  const fs::path real = fs::canonical(name, error);
  return error ? path : real.string();
}

// The target of a link, relative to the directory of the link; empty where `path` is no link.
fs::path link_target(const fs::path& path) {
  std::error_code error;
  const fs::path target = fs::read_symlink(path, error);
  return error ? fs::path() : target;
}

void replace_link(const fs::path& link, const fs::path& target) {
  const fs::path temporary = link.string() + "." + make_run_id().hex() + ".tmp";
  std::error_code error;
  fs::create_symlink(target, temporary, error);
  if (error) throw IoError("symlink", temporary.string(), 0, 0, error.value());
  fs::rename(temporary, link, error);
  if (error) throw IoError("rename", temporary.string(), 0, 0, error.value());
}

// Replaces the leading directory `from` of `path` by `to`. A path outside `from` stays as it is.
std::string moved_along(const std::string& path, const std::string& from, const std::string& to) {
  const fs::path below = normal_path(path).lexically_relative(normal_path(from));
  if (below.empty() || *below.begin() == "..") return path;
  return below == "." ? to : (fs::path(to) / below).string();
}

void place(config::Config& config, const config::Config& given, const std::string& directory) {
  config.memory.storage_paths = given.memory.storage_paths;
  for (std::string& path : config.memory.storage_paths) {
    path = moved_along(path, given.log.dir, directory);
  }
  config.log.dir = directory;
}

// Whether checkpoint.dir is its default: below log.dir.
bool keeps_checkpoints_in_run(const config::Config& given) {
  return normal_path(given.checkpoint.dir) ==
         normal_path(config::default_checkpoint_dir(given.log.dir));
}

}  // namespace

bool is_run_directory(const std::string& path) {
  const auto holds = [&](const char* name) {
    std::error_code ignored;
    return fs::is_regular_file(fs::symlink_status(fs::path(path) / name, ignored));
  };
  return holds(kConfigFile) && holds(kEventsFile);
}

std::vector<std::string> runs_in(const std::string& log_dir) {
  std::vector<fs::path> runs;
  for (const fs::path& path : list_directory(log_dir)) {
    if (number_of(path) && is_run_directory(path.string())) runs.push_back(path);
  }
  std::sort(runs.begin(), runs.end(),
            [](const fs::path& a, const fs::path& b) { return *number_of(a) > *number_of(b); });
  return {runs.begin(), runs.end()};
}

// Whether `path` is a run and no log.dir: an earlier version wrote a run into log.dir itself.
static bool holds_run_only(const std::string& path) {
  return is_run_directory(path) && runs_in(path).empty();
}

std::string latest_run(const std::string& path) {
  if (holds_run_only(path)) return without_link(path);
  const fs::path target = link_target(fs::path(path) / kLatest);
  if (!target.empty()) {
    std::string run = (fs::path(path) / target).string();
    if (is_run_directory(run)) return run;
  }
  const std::vector<std::string> runs = runs_in(path);
  return runs.empty() ? path : runs.front();
}

std::vector<std::string> runs_to_resume(const std::string& path) {
  if (holds_run_only(path)) return {without_link(path)};
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    throw InputError(
        "--resume: '" + path +
        "' is not a directory; give a run's directory, or the log.dir that it lies in");
  }
  std::vector<std::string> runs = runs_in(path);
  if (runs.empty()) {
    throw InputError("--resume: '" + path +
                     "' is not a run's directory, and no run lies in it: a run has " + kConfigFile +
                     " and " + kEventsFile);
  }
  return runs;
}

std::string launch_of(const std::string& run) {
  const fs::path path = fs::path(run) / kLaunchFile;
  std::error_code ignored;
  // A pipe in a directory of another user would never open.
  if (!fs::is_regular_file(fs::symlink_status(path, ignored))) return {};
  std::ifstream file(path);
  std::array<char, 64> line{};
  file.getline(line.data(), line.size());
  return line.data();
}

void check_own_directory(const std::string& path) {
  struct stat status = {};
  if (::lstat(path.c_str(), &status) != 0) throw IoError("lstat", path, 0, 0, errno);
  const std::string start = "'" + path + "' ";
  const std::string advice = "; remove it, or name another directory";
  if (!S_ISDIR(status.st_mode)) {
    throw InputError(start + "is not a directory, and a rank keeps its files there" + advice);
  }
  if (status.st_uid == ::geteuid()) return;
  throw InputError(start + "belongs to another user, number " + std::to_string(status.st_uid) +
                   ", and a rank keeps its files there" + advice);
}

std::vector<std::string> make_run_directory(const std::string& path, bool durable) {
  std::vector<std::string> made;
  fs::path at = normal_path(path);
  for (std::error_code error; !fs::exists(at, error) && at.has_relative_path();) {
    made.push_back(at.string());
    at = at.parent_path();
  }
  try {
    make_directories(path);
  } catch (const IoError& error) {
    throw InputError("'" + path +
                     "' cannot be made: " + std::generic_category().message(error.error_number));
  }
  if (durable) {
    for (const std::string& name : made) offload::sync_directory_of(name);
  }
  std::reverse(made.begin(), made.end());
  return made;
}

std::string next_run_directory(const std::string& log_dir) {
  const fs::path link = fs::path(log_dir) / kLatest;
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(link, ignored)) && link_target(link).empty()) {
    throw InputError("log.dir: '" + link.string() +
                     "' is in the way: a link of that name leads to the newest run; rename it, or "
                     "name another log.dir");
  }
  return (fs::path(log_dir) / name_of_number(next_number(log_dir))).string();
}

std::string claim_run_directory(const std::string& log_dir, bool durable) {
  make_run_directory(log_dir, durable);
  for (std::uint32_t number = next_number(log_dir);; ++number) {
    std::string directory = (fs::path(log_dir) / name_of_number(number)).string();
    if (::mkdir(directory.c_str(), 0700) == 0) {
      if (durable) offload::sync_directory_of(directory);
      return directory;
    }
    if (errno == EEXIST) continue;  // another start has claimed it since
    if (errno == ENOENT) {          // another start has removed the log.dir that it had made
      make_run_directory(log_dir, durable);
      continue;
    }
    throw InputError("log.dir: '" + directory +
                     "' cannot be made: " + std::generic_category().message(errno));
  }
}

// Proof that the last one to rename leaves the highest number: each process looks again after its
// own rename, and its run has begun before it looked. So a process that renamed to a lower number
// sees the higher run, or that run's own process has yet to rename.
void point_latest(const std::string& log_dir) {
  const fs::path link = fs::path(log_dir) / kLatest;
  while (true) {
    const std::vector<std::string> runs = runs_in(log_dir);
    if (runs.empty()) return;
    const fs::path newest = fs::path(runs.front()).filename();
    if (link_target(link) == newest) return;
    replace_link(link, newest);
  }
}

void place_new_run(config::Config& config, const config::Config& given,
                   const std::string& directory, const RunId& run) {
  place(config, given, directory);
  config.checkpoint.dir = keeps_checkpoints_in_run(given)
                              ? config::default_checkpoint_dir(directory)
                              : (fs::path(given.checkpoint.dir) / run.hex()).string();
}

void place_resumed_run(config::Config& config, const config::Config& given,
                       const std::string& directory) {
  place(config, given, directory);
  config.checkpoint.dir = config::default_checkpoint_dir(directory);
  const fs::path target = link_target(config.checkpoint.dir);
  if (target.empty()) return;
  const std::string link = config.checkpoint.dir;
  config.checkpoint.dir = (fs::path(directory) / target).lexically_normal().string();
  const fs::path above = normal_path(config.checkpoint.dir).parent_path();
  if (!keeps_checkpoints_in_run(given) && above != normal_path(given.checkpoint.dir)) {
    log(LogLevel::kWarning,
        "checkpoint.dir = '" + given.checkpoint.dir +
            "' is not used: a resumed run keeps its checkpoints, which lie in '" +
            config.checkpoint.dir + "'");
  }
  std::error_code error;
  if (!fs::is_directory(config.checkpoint.dir, error)) {
    throw InputError(
        "'" + link + "' leads to '" + config.checkpoint.dir +
        "', where the run's checkpoints were, and that is not a directory; is its disk "
        "mounted? If they were moved, lead the link there");
  }
}

}  // namespace sluice::run
