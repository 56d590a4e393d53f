#include "engine/host/host_engine.hpp"

#include <filesystem>
#include <limits>
#include <system_error>

#include "base/error.hpp"
#include "base/topology.hpp"
#include "device/cuda/cuda_device.hpp"
#include "device/host/host_device.hpp"

namespace sluice::host {
namespace {

// The share of free memory that "the default" takes: the host program needs some too.
constexpr std::uint64_t less_a_tenth(std::uint64_t free_bytes) {
  return free_bytes / 10 * 9;
}

// State is striped evenly, so the fullest file system counts for all.
std::uint64_t free_storage_bytes(const std::vector<std::string>& paths) {
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (const std::string& path : paths) {
    std::error_code error;
    const std::filesystem::space_info space = std::filesystem::space(path, error);
    if (error) throw InputError("the storage path '" + path + "': " + error.message());
    least = std::min<std::uint64_t>(least, space.available);
  }
  return paths.empty() ? 0 : least * paths.size();
}

EngineOptions with_budgets(EngineOptions options) {
  for (const std::string& path : options.storage_paths) {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) {
      throw InputError("the storage path '" + shown(path) + "' is no directory");
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

}  // namespace sluice::host
