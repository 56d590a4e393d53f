// Budgets are caps, so the machine must be able to give them. Memory is held against the free
// memory and the cgroup's limit; on the host backend the device's memory counts too. Disk space is
// counted per file system: paths that share one share its free bytes, and the stripes of all paths
// are limited by the fullest. Every check happens before a file or directory is made, and each
// refusal names the key and the number that would fit.
#include "engine/planner/machine_check.hpp"

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <vector>

#include "base/error.hpp"
#include "base/topology.hpp"
#include "engine/config/schema.hpp"
#include "engine/planner/default_budgets.hpp"
#include "offload/storage_engine.hpp"

namespace sluice::planner {
namespace {

namespace fs = std::filesystem;

// The path itself or its nearest existing parent, which would have to be writable.
fs::path nearest_existing(const fs::path& path) {
  fs::path at = fs::absolute(path);
  std::error_code error;
  while (!fs::exists(at, error) && at.has_parent_path() && at != at.parent_path()) {
    at = at.parent_path();
  }
  return at;
}

// Refuses a path that is not UTF-8, since events and records name it in JSON.
void check_is_text(const char* key, const std::string& path) {
  try {
    static_cast<void>(nlohmann::json(fs::absolute(path).string()).dump());
  } catch (const nlohmann::json::type_error&) {
    throw InputError(std::string(key) + ": the name of '" + shown(path) +
                     "', or of a directory above it, is not UTF-8");
  }
}

void check_directory(const char* key, const std::string& path) {
  check_is_text(key, path);
  const fs::path existing = nearest_existing(path);
  std::error_code error;
  if (!fs::is_directory(existing, error)) {
    throw InputError(std::string(key) + ": '" + path + "' cannot be a directory: '" +
                     existing.string() + "' is a file");
  }
  // Access rights say nothing here: root may write to /proc, yet nobody can make a file there.
  struct statfs facts {};
  const bool kernels_own = statfs(existing.c_str(), &facts) == 0 &&
                           (facts.f_type == PROC_SUPER_MAGIC || facts.f_type == SYSFS_MAGIC);
  if (kernels_own || access(existing.c_str(), W_OK | X_OK) != 0) {
    throw InputError(std::string(key) + ": '" + path + "' cannot be written");
  }
}

// Returns false if the directory cannot be examined.
bool lies_on(dev_t device, const std::string& directory) {
  struct stat status {};
  return stat(nearest_existing(directory).c_str(), &status) == 0 && status.st_dev == device;
}

// State is striped over the storage paths; those on one file system share its free space.
struct StorageRoom {
  std::vector<std::size_t> paths;  // those on the file system, by number
  std::uint64_t available_bytes = 0;
  dev_t device = 0;

  std::uint64_t needed_bytes(const offload::StripeLayout& layout, std::uint64_t bytes) const {
    std::uint64_t needed = 0;
    for (const std::size_t path : paths) needed += layout.bytes_on(path, bytes);
    return needed;
  }
};

std::vector<StorageRoom> storage_rooms(const config::Config& config) {
  std::map<dev_t, StorageRoom> rooms;
  const auto& paths = config.memory.storage_paths;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const std::string& path = paths[i];
    const fs::path existing = nearest_existing(path);
    struct stat status {};
    struct statvfs facts {};
    if (stat(existing.c_str(), &status) != 0 || statvfs(existing.c_str(), &facts) != 0) {
      throw InputError("memory.storage_paths: the free space of '" + path + "' cannot be read");
    }
    const auto available = static_cast<std::uint64_t>(facts.f_bavail) * facts.f_frsize;
    StorageRoom& room =
        rooms.try_emplace(status.st_dev, StorageRoom{{}, available, status.st_dev}).first->second;
    room.paths.push_back(i);
  }
  std::vector<StorageRoom> list;
  for (auto& [device, room] : rooms) list.push_back(std::move(room));
  return list;
}

// The bytes that can be striped over all paths; the fullest file system decides.
std::uint64_t free_storage_bytes(const config::Config& config) {
  const std::vector<std::uint32_t> shares = configured_layout(config).shares();
  std::uint64_t each = std::numeric_limits<std::uint64_t>::max();  // for one stripe of the round
  for (const StorageRoom& room : storage_rooms(config)) {
    std::uint64_t stripes = 0;
    for (const std::size_t path : room.paths) stripes += shares[path];
    each = std::min(each, room.available_bytes / stripes);
  }
  return each * std::accumulate(shares.begin(), shares.end(), std::uint64_t{0});
}

// The reason why the machine cannot give these budgets to each of its ranks; none if it can.
std::optional<std::string> excess(const config::Config& config, const MachineRoom& room) {
  const auto& memory = config.memory;
  const auto ranks = static_cast<std::uint64_t>(room.ranks);
  const std::string each = ranks == 1 ? "" : " for each of " + std::to_string(ranks) + " ranks";
  if (room.device_bytes) {
    if (memory.device_bytes > *room.device_bytes) {
      return "memory.device = " + format_bytes_exact(memory.device_bytes) + " is more than the " +
             format_bytes(*room.device_bytes) + " that is free on the GPU; lower it";
    }
    if (memory.pinned_bytes > room.memory_bytes / ranks) {
      return "memory.pinned = " + format_bytes_exact(memory.pinned_bytes) + each +
             " is more than the " + format_bytes(room.memory_bytes) +
             " of memory that is available here; lower it";
    }
  }
  // On the host backend the device's memory is the machine's too.
  const std::uint64_t asked = memory.device_bytes + memory.pinned_bytes;
  if (!room.device_bytes && asked > room.memory_bytes / ranks) {
    const std::string device = "memory.device = " + format_bytes_exact(memory.device_bytes);
    const std::string pinned = "memory.pinned = " + format_bytes_exact(memory.pinned_bytes);
    const std::string room_text =
        format_bytes(room.memory_bytes) + " of memory that is available here; lower ";
    const bool both = memory.device_bytes > 0 && memory.pinned_bytes > 0;
    if (both) {
      return device + " and " + pinned + each + " are together more than the " + room_text +
             "one of them";
    }
    return (memory.pinned_bytes == 0 ? device : pinned) + each + " is more than the " + room_text +
           "it";
  }
  if (memory.storage_bytes > room.storage_bytes / ranks) {
    return "memory.storage = " + format_bytes_exact(memory.storage_bytes) + each +
           " is more than the " + format_bytes(room.storage_bytes) + " that is free on '" +
           memory.storage_paths.front() +
           (memory.storage_paths.size() > 1 ? "' and the other storage paths" : "'") +
           "; lower it, or name other memory.storage_paths";
  }
  return std::nullopt;
}

}  // namespace

MachineRoom settle_budgets(config::Config& config, std::optional<std::uint64_t> device_bytes,
                           int ranks) {
  const MachineRoom room{read_host_topology().available_bytes, free_storage_bytes(config),
                         device_bytes, ranks};
  const std::uint64_t storage_bytes = room.storage_bytes / static_cast<std::uint64_t>(ranks);
  settle_auto_budgets(
      config, {room.memory_bytes / static_cast<std::uint64_t>(ranks), storage_bytes, device_bytes});
  if (const auto why = excess(config, room)) {
    if (config.memory.storage_bytes > storage_bytes) {
      // A file system of the kernel's own has no free space, which is not the reason.
      for (const std::string& path : config.memory.storage_paths) {
        check_directory("memory.storage_paths", path);
      }
      throw NoRoom(*why);
    }
    throw InputError(*why);
  }
  return room;
}

void keep_possible_suggestions(Refusal& refusal, const config::Config& config,
                               const MachineRoom& room) {
  std::erase_if(refusal.suggestions, [&](const Suggestion& suggestion) {
    config::Config changed = config;
    for (const auto& [key, bytes] : suggestion) {
      config::find_config_key(key)->assign(changed, static_cast<std::int64_t>(bytes));
    }
    return excess(changed, room).has_value();
  });
}

void note_storage_obstacle(Refusal& refusal, const config::Config& config) {
  try {
    for (const std::string& path : config.memory.storage_paths) {
      check_directory("memory.storage_paths", path);
    }
  } catch (const InputError& error) {
    refusal.storage_obstacle = error.what();
  }
}

offload::StripeLayout configured_layout(const config::Config& config) {
  const auto& memory = config.memory;
  if (memory.storage_shares.empty())
    return offload::StripeLayout::even(memory.storage_paths.size());
  return offload::StripeLayout(offload::shares_by_ratio(memory.storage_shares));
}

std::vector<std::size_t> paths_without_room(const config::Config& config,
                                            const offload::StripeLayout& layout,
                                            std::uint64_t storage_bytes) {
  std::vector<std::size_t> paths;
  const offload::StripeLayout even = offload::StripeLayout::even(layout.paths());
  for (const StorageRoom& room : storage_rooms(config)) {
    // The room for checkpoints and weights next to the state was checked for even shares.
    const bool beside_results =
        room.paths.size() < layout.paths() &&
        (lies_on(room.device, config.checkpoint.dir) || lies_on(room.device, config.log.dir));
    const std::uint64_t needed = room.needed_bytes(layout, storage_bytes);
    const std::uint64_t available =
        beside_results ? std::min(room.available_bytes, room.needed_bytes(even, storage_bytes))
                       : room.available_bytes;
    if (needed <= available) continue;
    paths.insert(paths.end(), room.paths.begin(), room.paths.end());
  }
  return paths;
}

void check_storage_paths(const config::Config& config, std::uint64_t needed_bytes) {
  if (needed_bytes == 0) return;
  const auto& memory = config.memory;
  for (const std::string& path : memory.storage_paths) {
    check_directory("memory.storage_paths", path);
  }
  const offload::StripeLayout layout = configured_layout(config);
  for (const StorageRoom& room : storage_rooms(config)) {
    const std::uint64_t needed = room.needed_bytes(layout, needed_bytes);
    if (needed > room.available_bytes) {
      throw NoRoom("memory.storage_paths: '" + memory.storage_paths[room.paths.front()] +
                   "' needs " + format_bytes_exact(needed) + " and has " +
                   format_bytes_exact(room.available_bytes) + " available");
    }
  }
  if (memory.storage_engine == config::Config::StorageEngineKind::kIoUring) {
    const std::string why = offload::io_uring_unavailable_reason();
    if (!why.empty()) {
      throw InputError("memory.storage_engine = \"io_uring\" cannot be used here: " + why +
                       "; \"auto\" or \"posix\" can");
    }
  }
}

void check_run_directories(const config::Config& config) {
  check_directory("log.dir", config.log.dir);
  check_directory("checkpoint.dir", config.checkpoint.dir);
}

void check_checkpoint_room(const config::Config& config, std::uint64_t checkpoint_bytes,
                           std::uint64_t storage_bytes) {
  struct stat status {};
  struct statvfs facts {};
  const std::string existing = nearest_existing(config.checkpoint.dir).string();
  if (stat(existing.c_str(), &status) != 0 || statvfs(existing.c_str(), &facts) != 0) {
    throw InputError("checkpoint.dir: the free space of '" + config.checkpoint.dir +
                     "' cannot be read");
  }
  // Storage paths on the same file system take their share first.
  std::uint64_t needed = checkpoint_bytes;
  if (storage_bytes > 0) {
    const offload::StripeLayout layout = configured_layout(config);
    const auto& paths = config.memory.storage_paths;
    for (std::size_t i = 0; i < paths.size(); ++i) {
      struct stat other {};
      const bool same =
          stat(nearest_existing(paths[i]).c_str(), &other) == 0 && other.st_dev == status.st_dev;
      if (same) needed += layout.bytes_on(i, storage_bytes);
    }
  }
  const auto available = static_cast<std::uint64_t>(facts.f_bavail) * facts.f_frsize;
  if (needed > available) {
    throw NoRoom("checkpoint.dir: '" + config.checkpoint.dir + "' needs " +
                 format_bytes_exact(needed) + " (a checkpoint, the final weights" +
                 (needed > checkpoint_bytes ? " and the storage tier with it" : "") + ") and has " +
                 format_bytes_exact(available) + " available");
  }
}

}  // namespace sluice::planner
