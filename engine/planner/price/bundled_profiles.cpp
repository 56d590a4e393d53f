// Profiles lie where the program was installed, so they are found from its own path. A build puts
// them at the same place relative to its programs.
#include "engine/planner/price/bundled_profiles.hpp"

#include <algorithm>
#include <filesystem>

#include "base/error.hpp"

namespace sluice::planner {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".json";

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

}  // namespace sluice::planner
