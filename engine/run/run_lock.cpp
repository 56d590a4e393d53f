#include "engine/run/run_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/file_descriptor.hpp"
#include "base/json_text.hpp"

namespace sluice::run {
namespace {

constexpr std::size_t kMaxRecordBytes = 64 * 1024;
constexpr std::size_t kMostEarlierRuns = 256;  // 9 KiB of the record
// A run that has just taken the lock still has to write its record. This many looks are enough.
constexpr int kLooks = 20;
constexpr std::chrono::milliseconds kBetweenLooks{5};

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  std::array<char, 32> text{};
  if (::gmtime_r(&now, &parts) == nullptr) return "";
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

std::string read_record(int descriptor) {
  std::string text(kMaxRecordBytes, '\0');
  const ssize_t bytes = ::pread(descriptor, text.data(), text.size(), 0);
  text.resize(bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  return text;
}

std::optional<RunHolder> read_holder(int descriptor) {
  using Json = nlohmann::json;
  const Json record = try_parse_json(read_record(descriptor));
  if (!record.is_object()) return std::nullopt;
  const auto text_of = [&](const char* name) {
    const auto found = record.find(name);
    return found != record.end() && found->is_string() ? found->get<std::string>() : "";
  };
  const auto pid = record.find("pid");
  if (pid == record.end() || !pid->is_number_integer()) return std::nullopt;
  RunHolder holder{
      pid->get<std::int64_t>(), text_of("host"), text_of("run_id"), text_of("started"), {}, {}};
  const auto texts_of = [&](const char* name, std::vector<std::string>& texts) {
    const auto found = record.find(name);
    if (found == record.end()) return;
    for (const Json& entry : *found) {
      if (entry.is_string()) texts.push_back(entry.get<std::string>());
    }
  };
  texts_of("storage_paths", holder.storage_paths);
  texts_of("earlier_runs", holder.earlier_runs);
  // Run ids become parts of file names, so drop any other text.
  std::erase_if(holder.earlier_runs, [](const std::string& run) { return !parse_run_id(run); });
  return parse_run_id(holder.run_id) ? std::optional(holder) : std::nullopt;
}

// Whether the holder may still run. A process of this host that has ended left an old record.
bool may_live(const RunHolder& holder) {
  if (holder.host != host_name()) return true;
  return ::kill(static_cast<pid_t>(holder.pid), 0) == 0 || errno == EPERM;
}

std::optional<RunHolder> read_live_holder(int descriptor) {
  for (int look = 0; look < kLooks; ++look) {
    std::optional<RunHolder> holder = read_holder(descriptor);
    if (holder && may_live(*holder)) return holder;
    std::this_thread::sleep_for(kBetweenLooks);
  }
  return std::nullopt;
}

bool try_lock(int descriptor, const std::string& path) {
  if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) return true;
  if (errno != EWOULDBLOCK) throw IoError("flock", path, 0, 0, errno);
  return false;
}

// Whether the file that is locked is still the one at `path`: a run that ends takes it away.
bool is_at(int descriptor, const std::string& path) {
  struct stat locked {};
  struct stat there {};
  return ::fstat(descriptor, &locked) == 0 && ::stat(path.c_str(), &there) == 0 &&
         locked.st_dev == there.st_dev && locked.st_ino == there.st_ino;
}

}  // namespace

std::string RunHolder::describe() const {
  return "process " + std::to_string(pid) + " on host " + host + ", run " + run_id + ", since " +
         started;
}

RunLock::RunLock(const std::string& key, const std::string& directory, const RunId& run,
                 const std::vector<std::string>& storage_paths)
    : path_(directory + "/lock") {
  for (const std::string& path : storage_paths) {
    storage_paths_.push_back(std::filesystem::absolute(path).lexically_normal().string());
  }
  int looks = 0;
  while (descriptor_ < 0) {
    FileDescriptor file(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (file.get() < 0 && (errno == EACCES || errno == EROFS || errno == EPERM)) {
      throw InputError(key + ": '" + path_ +
                       "' cannot be written: " + std::generic_category().message(errno));
    }
    if (file.get() < 0) throw IoError("open", path_, 0, 0, errno);
    if (!try_lock(file.get(), path_)) {
      const std::optional<RunHolder> holder = read_live_holder(file.get());
      // No record within a tenth of a second: RunLock::look held the lock for a moment, or a run
      // has just ended.
      if (!holder && looks++ < kLooks) continue;
      throw InputError(key + ": '" + directory + "' is in use by another run" +
                       (holder ? " (" + holder->describe() + ")" : std::string()) +
                       "; name another " + key + " or wait for it");
    }
    if (is_at(file.get(), path_)) descriptor_ = file.release();
  }
  record_before_ = read_record(descriptor_);
  if (const std::optional<RunHolder> earlier = read_holder(descriptor_)) take_over(*earlier);
  write_holder(run);
}

void RunLock::take_over(const RunHolder& earlier) {
  for (const std::string& path : earlier.storage_paths) {
    const auto end = storage_paths_.end();
    if (std::find(storage_paths_.begin(), end, path) == end) storage_paths_.push_back(path);
  }
  earlier_runs_ = earlier.earlier_runs;
  earlier_runs_.push_back(earlier.run_id);
  // A record that was tampered with may exceed the limit by more than one.
  while (earlier_runs_.size() > kMostEarlierRuns) earlier_runs_.erase(earlier_runs_.begin());
}

// Writes the record that other processes read. A run that cannot write it still holds the lock.
void RunLock::write_holder(const RunId& run) {
  nlohmann::ordered_json record{{"pid", ::getpid()},
                                {"host", host_name()},
                                {"run_id", run.hex()},
                                {"started", utc_now()},
                                {"storage_paths", storage_paths_},
                                {"earlier_runs", earlier_runs_}};
  const auto dumped = [&] { return lenient_json_text(record) + "\n"; };
  std::string text = dumped();
  if (text.size() > kMaxRecordBytes) {  // the holder matters more than its paths
    record.erase("storage_paths");
    text = dumped();
  }
  write(text);
}

void RunLock::write(const std::string& record) const {
  if (::ftruncate(descriptor_, 0) != 0) return;
  static_cast<void>(::pwrite(descriptor_, record.data(), record.size(), 0));
}

// The file is removed while it is locked. A process that has it open then finds it gone from its
// path.
RunLock::~RunLock() {
  if (keeps_record_ && !record_before_.empty()) {
    write(record_before_);
  } else {
    static_cast<void>(::unlink(path_.c_str()));
  }
  ::close(descriptor_);
}

RunLock::State RunLock::look(const std::string& directory) {
  const std::string path = directory + "/lock";
  const FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  State state;
  if (file.get() < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return state;
    throw IoError("open", path, 0, 0, errno);
  }
  state.exists = true;
  state.held = !try_lock(file.get(), path);
  state.holder = state.held ? read_live_holder(file.get()) : read_holder(file.get());
  return state;
}

}  // namespace sluice::run
