#include "tools/bench/fio.hpp"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <vector>

#include "base/deadline.hpp"
#include "base/error.hpp"
#include "base/json_text.hpp"
#include "base/units.hpp"

extern char** environ;

namespace sluice::bench {
namespace {

// Time beyond the run time, for fio to start and to write its answer.
constexpr double kGraceSeconds = 60;

// Starts the program with its standard streams on /dev/null. Returns 0 if it is not installed.
pid_t start(std::vector<std::string> arguments) {
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  int status = ::posix_spawn_file_actions_init(&actions);
  for (const int stream : {0, 1, 2}) {
    if (status != 0) break;
    status = ::posix_spawn_file_actions_addopen(&actions, stream, "/dev/null", O_RDWR, 0);
  }
  pid_t child = 0;
  if (status == 0) {
    status = ::posix_spawnp(&child, pointers[0], &actions, nullptr, pointers.data(), environ);
  }
  ::posix_spawn_file_actions_destroy(&actions);
  if (status == ENOENT) return 0;
  if (status != 0) throw IoError("posix_spawn", arguments[0], 0, 0, status);
  return child;
}

// Returns the exit status. Past the deadline it kills and reaps the child and throws TimeoutError.
int wait_for(pid_t child, Deadline deadline) {
  bool killed = false;
  while (true) {
    int status = 0;
    const pid_t ended = ::waitpid(child, &status, killed ? 0 : WNOHANG);
    if (ended == child) {
      if (killed) throw TimeoutError("fio to end");
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    if (ended < 0 && errno != EINTR) throw IoError("waitpid", "fio", 0, 0, errno);
    if (!killed && deadline.passed()) {
      ::kill(child, SIGKILL);
      killed = true;
    }
    if (!killed) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

const char* fio_mix(StorageMix mix) {
  if (mix == StorageMix::kRead) return "--rw=read";
  return mix == StorageMix::kWrite ? "--rw=write" : "--rw=rw";
}

// The leanest fio: it reads the clock only for its rate (gtod_reduce), and fills its buffers once
// (scramble_buffers would write into each block before it is written).
std::vector<std::string> arguments_of(const FioLoad& load, StorageMix mix) {
  const auto runtime_ms = static_cast<std::int64_t>(std::ceil(load.seconds * 1e3));
  return {"fio",
          "--name=sluice",
          "--filename=" + load.file,
          "--size=" + std::to_string(load.bytes),
          "--bs=" + std::to_string(load.block_bytes),
          "--iodepth=" + std::to_string(load.depth),
          "--ioengine=io_uring",
          "--direct=1",
          "--fixedbufs=1",
          "--registerfiles=1",
          load.huge_pages ? "--iomem=mmaphuge" : "--iomem=mmap",
          "--scramble_buffers=0",
          "--gtod_reduce=1",
          "--fallocate=none",
          "--overwrite=1",
          "--time_based=1",
          "--randrepeat=1",
          "--runtime=" + std::to_string(runtime_ms) + "ms",
          "--output-format=json",
          "--output=" + load.scratch,
          fio_mix(mix)};
}

// The number after "NAME:" in a text like /proc/meminfo; 0 if there is none.
std::uint64_t meminfo_value(const std::string& meminfo, const std::string& name) {
  std::istringstream lines(meminfo);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(name + ":", 0) != 0) continue;
    std::uint64_t value = 0;
    std::istringstream(line.substr(name.size() + 1)) >> value;
    return value;
  }
  return 0;
}

}  // namespace

bool huge_pages_free(const std::string& meminfo, std::uint64_t buffer_bytes) {
  const std::uint64_t page_bytes = meminfo_value(meminfo, "Hugepagesize") * kKiB;
  const std::uint64_t free_pages = meminfo_value(meminfo, "HugePages_Free");
  const std::uint64_t reserved_pages = meminfo_value(meminfo, "HugePages_Rsvd");
  if (page_bytes == 0 || free_pages <= reserved_pages) return false;
  // fio asks for a little more than its blocks, and mmap rounds up to whole pages.
  return (free_pages - reserved_pages) >= buffer_bytes / page_bytes + 1;
}

std::uint32_t fio_depth(std::uint32_t depth) {
  return std::bit_ceil(depth);
}

std::uint64_t fio_buffer_bytes(std::uint64_t block_bytes, std::uint32_t depth) {
  return block_bytes * fio_depth(depth);
}

bool huge_pages_free(std::uint64_t buffer_bytes) {
  std::ifstream file("/proc/meminfo");
  return huge_pages_free({std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()},
                         buffer_bytes);
}

std::optional<StorageRate> run_fio(const FioLoad& load, StorageMix mix) {
  const pid_t child = start(arguments_of(load, mix));
  if (child == 0) return std::nullopt;
  const int status = wait_for(child, Deadline::after_seconds(load.seconds + kGraceSeconds));
  std::ifstream file(load.scratch, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::error_code ignored;  // the directory is removed by its owner
  std::filesystem::remove(load.scratch, ignored);
  if (status != 0) throw Error("fio ended with status " + std::to_string(status));
  return parse_fio(text);
}

StorageRate parse_fio(const std::string& text) {
  // Warnings may stand before the object.
  const auto begin = text.find('{');
  const auto document =
      try_parse_json(begin == std::string::npos ? std::string() : text.substr(begin));
  try {
    const auto& job = document.at("jobs").at(0);
    StorageRate rate;
    double longest_ms = 0;
    for (const char* direction : {"read", "write"}) {
      rate.bytes += job.at(direction).at("io_bytes").get<std::uint64_t>();
      longest_ms = std::max(longest_ms, job.at(direction).at("runtime").get<double>());
    }
    rate.seconds = longest_ms * 1e-3;
    const double cpu_percent = job.at("usr_cpu").get<double>() + job.at("sys_cpu").get<double>();
    rate.cpu_seconds = cpu_percent * 1e-2 * job.at("job_runtime").get<double>() * 1e-3;
    return rate;
  } catch (const nlohmann::json::exception& error) {
    throw Error(std::string("cannot parse fio's answer: ") + error.what());
  }
}

}  // namespace sluice::bench
