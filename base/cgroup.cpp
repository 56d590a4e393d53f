#include "base/cgroup.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

namespace sluice {

namespace {

namespace fs = std::filesystem;

// Version 1 writes "no limit" as a number near 2^63 rounded to pages.
constexpr std::uint64_t kUnlimitedBytes = std::uint64_t{1} << 60;

// File names of one version. `cache_*`: keys of memory.stat.
struct Version {
  std::string_view limit;
  std::string_view usage;
  std::string_view cache_inactive;
  std::string_view cache_active;
};
constexpr Version kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
                            "total_active_file"};
constexpr Version kVersion2{"memory.max", "memory.current", "inactive_file", "active_file"};

std::optional<std::uint64_t> read_number(const fs::path& path) {
  std::ifstream file(path);
  std::string word;
  if (!(file >> word)) return std::nullopt;
  std::uint64_t value = 0;
  const auto result = std::from_chars(word.data(), word.data() + word.size(), value);
  if (result.ec != std::errc{}) return std::nullopt;  // "max"
  return value;
}

std::uint64_t read_file_cache_bytes(const fs::path& path, const Version& version) {
  std::ifstream file(path);
  std::uint64_t total = 0;
  std::string key;
  std::uint64_t value = 0;
  while (file >> key >> value) {
    if (key == version.cache_inactive || key == version.cache_active) total += value;
  }
  return total;
}

void apply_group(const fs::path& directory, const Version& version, CgroupMemory& memory) {
  const auto limit = read_number(directory / version.limit);
  if (!limit || *limit >= kUnlimitedBytes) return;
  const std::uint64_t usage = read_number(directory / version.usage).value_or(0);
  const std::uint64_t cache = read_file_cache_bytes(directory / "memory.stat", version);
  const std::uint64_t held = usage - std::min(usage, cache);
  const std::uint64_t left = *limit - std::min(*limit, held);
  memory.limit_bytes =
      memory.limit_bytes == 0 ? *limit : std::min<std::uint64_t>(memory.limit_bytes, *limit);
  memory.left_bytes = std::min(memory.left_bytes, left);
}

// A cgroup mount that governs memory.
struct Mount {
  fs::path point;  // the mount point
  fs::path root;   // the group that its top directory shows
  const Version* version;
};

bool has_word(std::string_view list, std::string_view word) {
  std::istringstream words{std::string(list)};
  for (std::string item; std::getline(words, item, ',');) {
    if (item == word) return true;
  }
  return false;
}

// proc(5), /proc/pid/mountinfo: id parent dev root point options [optional…] - type source super.
std::optional<Mount> parse_mount(const std::string& line) {
  std::istringstream fields(line);
  std::string id, parent, device, root, point, word, type, source, super_options;
  if (!(fields >> id >> parent >> device >> root >> point)) return std::nullopt;
  while (fields >> word && word != "-") {
  }
  if (!(fields >> type >> source >> super_options)) return std::nullopt;
  if (type == "cgroup2") return Mount{point, root, &kVersion2};
  if (type == "cgroup" && has_word(super_options, "memory")) return Mount{point, root, &kVersion1};
  return std::nullopt;
}

// The group of this process: version 2 has controllers "" (line "0::/path"), version 1 "memory".
std::optional<fs::path> find_group(const fs::path& root, bool version2) {
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (version2 ? controllers.empty() : has_word(controllers, "memory")) {
      return fs::path(line.substr(second + 1));
    }
  }
  return std::nullopt;
}

void apply_mount(const fs::path& root, const Mount& mount, CgroupMemory& memory) {
  const auto group = find_group(root, mount.version == &kVersion2);
  if (!group) return;
  // Inside a container the mount may show only a part of the tree that the group's path refers to.
  fs::path inside = group->lexically_relative(mount.root);
  if (inside.empty() || *inside.begin() == "..") inside = ".";
  const fs::path top = root / mount.point.relative_path();
  fs::path directory = top;
  apply_group(directory, *mount.version, memory);
  for (const fs::path& part : inside) {
    if (part == ".") continue;
    directory /= part;
    apply_group(directory, *mount.version, memory);
  }
}

}  // namespace

CgroupMemory read_cgroup_memory(const std::filesystem::path& root) {
  CgroupMemory memory;
  std::ifstream mounts(root / "proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    if (const auto mount = parse_mount(line)) apply_mount(root, *mount, memory);
  }
  return memory;
}

}  // namespace sluice
