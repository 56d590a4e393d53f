#include "tools/doctor/checks.hpp"

#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <string_view>

#include "base/error.hpp"
#include "base/topology.hpp"
#include "base/units.hpp"
#include "device/cuda/cuda_device.hpp"
#include "offload/storage_engine.hpp"
#include "offload/storage_file.hpp"

namespace sluice::doctor {
namespace {

// Below this not even a small model's pinned and device budgets fit.
constexpr std::uint64_t kLeastMemoryBytes = 1 * kGiB;
constexpr std::uint64_t kLeastDiskBytes = 4 * kGiB;
// Bytes that are locked as a trial: more than the usual default limit of 8 MiB.
constexpr std::uint64_t kLockTrialBytes = 64 * kMiB;

std::string read_text(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

DoctorCheck failed(std::string name, nlohmann::json value, std::string detail, std::string fix) {
  return {std::move(name), false, std::move(value), std::move(detail), std::move(fix)};
}

DoctorCheck passed(std::string name, nlohmann::json value, std::string detail) {
  return {std::move(name), true, std::move(value), std::move(detail), ""};
}

DoctorCheck check_io_uring() {
  const std::string reason = offload::io_uring_unavailable_reason();
  if (reason.empty()) return passed("io_uring", "available", "available");
  return failed(
      "io_uring", reason, reason,
      "Allow the io_uring system calls (sysctl kernel.io_uring_disabled=0; Docker: a seccomp "
      "profile that has them), or train with memory.storage_engine=posix at some CPU cost.");
}

DoctorCheck check_memlock(const HostTopology& host) {
  const bool unlimited = host.memlock_limit_bytes == std::numeric_limits<std::uint64_t>::max();
  const nlohmann::json value =
      unlimited ? nlohmann::json("unlimited") : nlohmann::json(host.memlock_limit_bytes);
  const std::string limit =
      unlimited ? "unlimited" : "limit " + format_bytes(host.memlock_limit_bytes);
  // Privileges lift the limit, so locking is tried.
  void* memory =
      ::mmap(nullptr, kLockTrialBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const bool locked = memory != MAP_FAILED && ::mlock(memory, kLockTrialBytes) == 0;
  const int error = errno;
  if (memory != MAP_FAILED) ::munmap(memory, kLockTrialBytes);
  const std::string trial = "locking " + format_bytes(kLockTrialBytes);
  if (locked) return passed("memlock", value, limit + ", " + trial + " works");
  return failed(
      "memlock", value, limit + ", " + trial + " fails: " + std::strerror(error),
      "Raise RLIMIT_MEMLOCK above the pinned budget (`ulimit -l unlimited`, or memlock in "
      "/etc/security/limits.conf); until then pinned memory stays unlocked and unregistered.");
}

DoctorCheck check_huge_pages() {
  const std::string mode = selected_word(read_text("/sys/kernel/mm/transparent_hugepage/enabled"));
  if (mode == "always" || mode == "madvise") {
    return passed("huge_pages", mode, "transparent huge pages: " + mode);
  }
  return failed(
      "huge_pages", mode.empty() ? "unknown" : mode,
      "transparent huge pages: " + (mode.empty() ? std::string("unknown") : mode),
      "Write madvise to /sys/kernel/mm/transparent_hugepage/enabled as root; without it large "
      "buffers cost more TLB misses.");
}

DoctorCheck check_direct_io(const std::string& directory) {
  const std::string path = directory + "/.sluice_doctor_" + std::to_string(::getpid());
  try {
    offload::StorageFile file(path, offload::StorageFileMode::kScratch, 4096);
    if (file.direct()) {
      const std::uint64_t bytes = file.alignment().offset_bytes;
      return passed("direct_io", bytes,
                    "'" + directory + "' takes direct I/O at multiples of " +
                        std::to_string(bytes) + " bytes");
    }
    return failed(
        "direct_io", 0, "'" + directory + "' takes no direct I/O",
        "Choose a storage path on a local disk file system (ext4, XFS) with memory.storage_paths; "
        "here storage goes through the page cache and competes for memory.");
  } catch (const Error& error) {
    return failed(
        "direct_io", 0, error.what(),
        "Choose a storage path that exists and can be written with memory.storage_paths.");
  }
}

DoctorCheck check_cgroup(const HostTopology& host) {
  if (host.cgroup_limit_bytes == 0)
    return passed("cgroup_limit", "none", "no memory limit by control group");
  const std::string detail =
      "memory limit by control group: " + format_bytes(host.cgroup_limit_bytes);
  if (host.cgroup_limit_bytes >= kLeastMemoryBytes)
    return passed("cgroup_limit", host.cgroup_limit_bytes, detail);
  return failed(
      "cgroup_limit", host.cgroup_limit_bytes, detail,
      "Raise the control group's memory.max (Docker: --memory) above the sum of the device and "
      "pinned budgets plus 1 GiB.");
}

DoctorCheck check_memory(const HostTopology& host) {
  const std::string detail = format_bytes(host.available_bytes) + " of memory available, of " +
                             format_bytes(host.memory_bytes);
  if (host.available_bytes >= kLeastMemoryBytes)
    return passed("memory", host.available_bytes, detail);
  return failed(
      "memory", host.available_bytes, detail,
      "Free memory or use a larger machine: budgets above what is available are refused.");
}

DoctorCheck check_disk(const std::string& directory) {
  struct statvfs facts {};
  if (::statvfs(directory.c_str(), &facts) != 0) {
    return failed("disk", 0, "'" + directory + "': " + std::strerror(errno),
                  "Choose a storage path that exists with memory.storage_paths.");
  }
  const std::uint64_t free_bytes = std::uint64_t{facts.f_bavail} * facts.f_frsize;
  const std::string detail = format_bytes(free_bytes) + " free in '" + directory + "'";
  if (free_bytes >= kLeastDiskBytes) return passed("disk", free_bytes, detail);
  return failed(
      "disk", free_bytes, detail,
      "Free disk space, or choose a larger file system with memory.storage_paths: a model needs up "
      "to 16 bytes per parameter there.");
}

// A machine without a GPU lacks nothing: the host computes.
DoctorCheck check_gpu() {
  const device::CudaSearch search = device::find_cuda_devices();
  if (search.devices.empty()) return passed("gpu", "none", "none used: " + search.missing);
  nlohmann::json value = nlohmann::json::array();
  std::string detail;
  for (const device::CudaDeviceInfo& gpu : search.devices) {
    const std::string capability =
        std::to_string(gpu.compute_major) + "." + std::to_string(gpu.compute_minor);
    value.push_back({{"name", gpu.name},
                     {"memory_bytes", gpu.memory_bytes},
                     {"compute_capability", capability},
                     {"driver", gpu.driver_version},
                     {"pci", gpu.pci_bus_id},
                     {"numa_node", gpu.numa_node},
                     {"link_speed", gpu.link_speed},
                     {"link_lanes", gpu.link_lanes}});
    detail += (detail.empty() ? "" : "; ") + gpu.name + ", " + format_bytes(gpu.memory_bytes) +
              ", compute capability " + capability;
    if (!gpu.link_speed.empty()) detail += ", " + gpu.link_speed + " x" + gpu.link_lanes;
  }
  return passed("gpu", value, detail);
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

DoctorCheck check_isa(const std::vector<std::string>& features) {
  const auto has = [&](std::string_view word) {
    return std::find(features.begin(), features.end(), word) != features.end();
  };
  const std::string found = joined(features);
  if (has("avx2") || has("asimd")) return passed("cpu_isa", found, found);
  return failed("cpu_isa", found, found.empty() ? "no vector instruction set found" : found,
                "Use a processor with AVX2 or later (in a virtual machine: pass the host's CPU "
                "model through).");
}

DoctorCheck check_bf16(const std::vector<std::string>& features) {
  for (const std::string& word : features) {
    if (word == "amx_bf16" || word == "avx512_bf16" || word == "bf16") {
      return passed("cpu_bf16", word, "native bf16 matrix products (" + word + ")");
    }
  }
  return failed("cpu_bf16", "none", "no native bf16: products are computed in fp32",
                "Nothing is wrong; a processor with AVX512_BF16 or AMX multiplies bf16 faster.");
}

}  // namespace

std::string selected_word(const std::string& text) {
  const auto begin = text.find('[');
  const auto end = text.find(']', begin == std::string::npos ? 0 : begin);
  if (begin == std::string::npos || end == std::string::npos) return "";
  return text.substr(begin + 1, end - begin - 1);
}

std::vector<std::string> cpu_features(const std::string& cpuinfo) {
  constexpr std::array<std::string_view, 9> kKnown{
      "avx2", "fma", "f16c", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16"};
  std::istringstream lines(cpuinfo);
  std::string line;
  std::vector<std::string> found;
  while (std::getline(lines, line)) {
    if (line.rfind("flags", 0) != 0 && line.rfind("Features", 0) != 0) continue;
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;
    std::istringstream words(line.substr(colon + 1));
    for (std::string word; words >> word;) {
      if (std::find(kKnown.begin(), kKnown.end(), word) != kKnown.end()) found.push_back(word);
    }
    break;
  }
  return found;
}

std::vector<DoctorCheck> run_checks(const std::string& storage_directory) {
  const HostTopology host = read_host_topology();
  const auto features = cpu_features(read_text("/proc/cpuinfo"));
  return {check_io_uring(),
          check_memlock(host),
          check_huge_pages(),
          check_direct_io(storage_directory),
          check_cgroup(host),
          check_memory(host),
          check_disk(storage_directory),
          check_isa(features),
          check_bf16(features),
          check_gpu()};
}

}  // namespace sluice::doctor
