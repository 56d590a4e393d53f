// Profiles lie where the program was installed, so they are found from its own path. A build puts
// them at the same place relative to its programs.
#include "engine/planner/bundled_profiles.hpp"

#include <algorithm>
#include <filesystem>

#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::planner {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".json";

// Left free on the device: the driver's context, libraries that load code at their first call, and
// a desktop.
constexpr std::uint64_t kDeviceReserveBytes = 3 * kGiB / 2;
// One part in this many of the host's memory stays for the system and for page caches, and of the
// drives for file systems and checkpoints.
constexpr std::uint64_t kHostReservePart = 8;
// Budgets are round numbers.
constexpr std::uint64_t kBudgetStepBytes = kGiB / 2;

// The ranks of a node share its memory and its drives.
std::uint64_t of_rank(std::uint64_t bytes, const HardwareProfile& hardware) {
  const std::int32_t ranks = hardware.rank_links ? hardware.rank_links->node_ranks : 0;
  return bytes / static_cast<std::uint64_t>(std::max(ranks, 1));
}

// "memory.device=22GiB"
std::string budget(const char* key, std::uint64_t bytes) {
  return std::string(key) + "=" + format_bytes_exact(bytes / kBudgetStepBytes * kBudgetStepBytes);
}

std::uint64_t without_reserve(std::uint64_t bytes) {
  return bytes - bytes / kHostReservePart;
}

}  // namespace

std::string bundled_profile_directory() {
  std::error_code unknown;
  const fs::path program = fs::read_symlink("/proc/self/exe", unknown);
  if (unknown) return {};
  return (program.parent_path().parent_path() / "share" / "sluice" / "hardware").string();
}

std::vector<std::string> profile_names(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code unreadable;
  for (const auto& entry : fs::directory_iterator(directory, unreadable)) {
    if (entry.path().extension() == kSuffix) names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

HardwareProfile load_named_profile(const std::string& name, const std::string& directory) {
  if (name.find('/') != std::string::npos || name.ends_with(kSuffix)) return load_profile(name);
  const std::vector<std::string> names = profile_names(directory);
  if (std::find(names.begin(), names.end(), name) != names.end()) {
    return load_profile(directory + "/" + name + std::string(kSuffix));
  }
  std::error_code unknown;
  if (fs::exists(fs::symlink_status(name, unknown))) return load_profile(name);
  std::string known;
  for (const std::string& each : names) known += (known.empty() ? "" : ", ") + each;
  throw InputError("--hardware: '" + shown(name) + "' is not a profile" +
                   (known.empty() ? "" : "; known: " + known) + ", and there is no such file");
}

std::vector<std::string> default_budgets(const HardwareProfile& hardware) {
  std::vector<std::string> budgets;
  if (hardware.gpu && hardware.gpu->memory_bytes > kDeviceReserveBytes) {
    budgets.push_back(budget("memory.device", hardware.gpu->memory_bytes - kDeviceReserveBytes));
  }
  // Without a GPU the device is host memory too, so no share of it is known.
  if (hardware.gpu && hardware.memory_bytes > 0) {
    budgets.push_back(
        budget("memory.pinned", of_rank(without_reserve(hardware.memory_bytes), hardware)));
  }
  if (hardware.storage_bytes > 0) {
    budgets.push_back(
        budget("memory.storage", of_rank(without_reserve(hardware.storage_bytes), hardware)));
  }
  return budgets;
}

}  // namespace sluice::planner
