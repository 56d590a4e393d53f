#include "engine/host/host_engine.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <limits>
#include <map>
#include <span>
#include <system_error>
#include <utility>

#include "base/error.hpp"
#include "base/posix_file.hpp"
#include "base/topology.hpp"
#include "device/cuda/cuda_device.hpp"
#include "device/host/host_device.hpp"

namespace sluice::host {
namespace {

// The share of free memory that "the default" takes: the host program needs some too.
constexpr std::uint64_t less_a_tenth(std::uint64_t free_bytes) {
  return free_bytes / 10 * 9;
}

// The number of a path's file system.
std::uint64_t file_system_of(const std::string& path) {
  struct stat facts {};
  if (::stat(path.c_str(), &facts) != 0) throw IoError("stat", path, 0, 0, errno);
  return facts.st_dev;
}

// State is striped evenly, so the fullest file system counts for all. Paths on one file system
// share its bytes.
std::uint64_t free_storage_bytes(const std::vector<std::string>& paths) {
  std::map<std::uint64_t, std::uint64_t> paths_on;  // by file system
  for (const std::string& path : paths) ++paths_on[file_system_of(path)];
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (const std::string& path : paths) {
    std::error_code error;
    const std::filesystem::space_info space = std::filesystem::space(path, error);
    if (error) throw InputError("the storage path '" + path + "': " + error.message());
    least = std::min<std::uint64_t>(least, space.available / paths_on[file_system_of(path)]);
  }
  return paths.empty() ? 0 : least * paths.size();
}

EngineOptions with_budgets(EngineOptions options) {
  for (const std::string& path : options.storage_paths) {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) {
      throw InputError("the storage path '" + shown(path) + "' is not a directory");
    }
  }
  if (options.pinned_bytes == 0) {
    options.pinned_bytes = less_a_tenth(read_host_topology().available_bytes);
  }
  if (options.device_bytes == 0) {
    options.device_bytes = less_a_tenth(options.cuda ? device::free_cuda_bytes(options.device_id)
                                                     : read_host_topology().available_bytes);
  }
  if (options.storage_paths.empty()) options.storage_bytes = 0;
  if (options.storage_bytes == 0) {
    options.storage_bytes = less_a_tenth(free_storage_bytes(options.storage_paths));
  }
  return options;
}

std::unique_ptr<device::Device> make_device(const EngineOptions& options) {
  if (options.make_device) return options.make_device(options);
  if (options.cuda) {
    return device::make_cuda_device(
        {.ordinal = options.device_id, .capacity_bytes = options.device_bytes});
  }
  device::HostDeviceOptions host;
  host.capacity_bytes = options.device_bytes;
  host.link_bandwidth_bytes_per_s = options.link_bandwidth_bytes_per_s;
  return device::make_host_device(host);
}

}  // namespace

HostEngine::HostEngine(const EngineOptions& options)
    : options_(with_budgets(options)),
      device_(make_device(options_)),
      ledger_({options_.device_bytes, options_.pinned_bytes, options_.storage_bytes}) {}

std::array<std::uint64_t, kTierCount> HostEngine::bytes_left() const {
  std::array<std::uint64_t, kTierCount> left{};
  for (const Tier tier : kTiers) {
    const std::uint64_t cap = ledger_.cap_bytes(tier);
    left[static_cast<std::size_t>(tier)] = cap - std::min(cap, ledger_.totals(tier).live_bytes);
  }
  return left;
}

std::unique_ptr<offload::StorageEngine> HostEngine::make_storage() const {
  auto engine = offload::make_storage_engine(options_.storage_engine, {});
  return options_.wrap_storage ? options_.wrap_storage(std::move(engine)) : std::move(engine);
}

void HostEngine::write_trace(const std::string& path) const {
  check_replaceable(path);
  const std::string text = trace_.to_json();
  const std::string unfinished = path + ".tmp";
  PosixFile::create(unfinished).write_all(0, std::as_bytes(std::span(text)));
  rename_durably(unfinished, path);
}

}  // namespace sluice::host
