#include "engine/planner/machine_check.hpp"

#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>

#include "base/error.hpp"
#include "base/topology.hpp"
#include "base/units.hpp"

namespace sluice {
namespace {

namespace fs = std::filesystem;

// The path itself, or the nearest parent that exists: what would have to be written.
fs::path nearest_existing(const fs::path& path) {
  fs::path at = fs::absolute(path);
  std::error_code error;
  while (!fs::exists(at, error) && at.has_parent_path() && at != at.parent_path()) {
    at = at.parent_path();
  }
  return at;
}

}  // namespace

void check_memory_budgets(const Config& config) {
  const HostTopology topology = read_host_topology();
  const std::uint64_t asked = config.memory.device_bytes + config.memory.pinned_bytes;
  // On the host backend the device's memory is the machine's too.
  if (asked > topology.available_bytes) {
    throw InputError("memory.device + memory.pinned = " + format_bytes_exact(asked) +
                     " is more than the " + format_bytes(topology.available_bytes) +
                     " of memory that is available here; lower one of them");
  }
}

void check_storage_paths(const Config& config, std::uint64_t needed_bytes) {
  if (needed_bytes == 0) return;
  const auto& paths = config.memory.storage_paths;
  const std::uint64_t share = ceil_div(needed_bytes, paths.size());
  for (const std::string& path : paths) {
    const fs::path existing = nearest_existing(path);
    std::error_code error;
    if (!fs::is_directory(existing, error)) {
      throw InputError("memory.storage_paths: '" + path + "' is no directory");
    }
    if (access(existing.c_str(), W_OK | X_OK) != 0) {
      throw InputError("memory.storage_paths: '" + path + "' cannot be written");
    }
    struct statvfs facts {};
    if (statvfs(existing.c_str(), &facts) != 0) {
      throw InputError("memory.storage_paths: the free space of '" + path + "' cannot be read");
    }
    const std::uint64_t available = static_cast<std::uint64_t>(facts.f_bavail) * facts.f_frsize;
    if (share > available) {
      throw InputError("memory.storage_paths: '" + path + "' needs " + format_bytes_exact(share) +
                       " and has " + format_bytes_exact(available) + " available");
    }
  }
}

}  // namespace sluice
