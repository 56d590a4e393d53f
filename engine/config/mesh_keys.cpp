// Keys that have a meaning among several ranks alone.
//
// A value that nothing takes would be taken for a setting that works, so it is refused where it
// stands beside one rank. A configuration for many ranks may be run on fewer, by an override of its
// mesh: `--set parallel.pipeline=1`. Its keys then rest. The configuration that a run writes leaves
// resting keys at their defaults, since a resume reads them beside its own mesh.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "engine/config/resolve.hpp"
#include "engine/config/schema.hpp"

namespace sluice::config {
namespace {

struct MeshKey {
  const char* path;
  std::vector<const char*> counts;  // the key has no meaning where all of them are 1
};

const std::array<MeshKey, 9>& mesh_keys() {
  static const std::array<MeshKey, 9> keys{
      {{"memory.place.partial", {"parallel.data"}},
       {"parallel.server", {"parallel.data"}},
       {"parallel.reduction", {"parallel.data"}},
       {"parallel.node_ranks", {"parallel.data"}},
       {"parallel.bucket", {"parallel.data"}},
       {"parallel.context_attention", {"parallel.context"}},
       {"parallel.transport",
        {"parallel.data", "parallel.pipeline", "parallel.tensor", "parallel.context"}},
       {"parallel.schedule", {"parallel.pipeline"}},
       {"parallel.virtual_stages", {"parallel.pipeline"}}}};
  return keys;
}

bool rests(const Config& config, const MeshKey& key) {
  return std::ranges::all_of(key.counts, [&](const char* count) {
    return std::get<std::int64_t>(find_config_key(count)->read(config)) == 1;
  });
}

// Whether an override of the mesh came after the key.
bool mesh_is_later(const ConfigOrigins& origins, const MeshKey& key) {
  return std::ranges::any_of(key.counts,
                             [&](const char* count) { return origins.is_later(count, key.path); });
}

std::string circumstance(const MeshKey& key) {
  return key.counts.size() == 1 ? key.counts.front() + std::string(" = 1") : "one rank";
}

// The value of a configuration that names no mesh.
ConfigValue value_of_one_rank(const ConfigKey& key) {
  Config config;
  config.parallel.virtual_stages = 1;
  return key.read(config);
}

}  // namespace

void check_mesh_keys(const Config& config, const ConfigOrigins& origins) {
  for (const MeshKey& mesh_key : mesh_keys()) {
    const ConfigKey& key = *find_config_key(mesh_key.path);
    if (!origins.given(key.path) || !rests(config, mesh_key) || mesh_is_later(origins, mesh_key) ||
        key.read(config) == value_of_one_rank(key)) {
      continue;
    }
    throw InputError(origins.of(key.path) + ": " + key.path + " = " +
                     format_value(key, key.read(config)) + " has no meaning with " +
                     circumstance(mesh_key) + "; leave it out");
  }
}

ConfigValue written_value(const Config& config, const ConfigKey& key) {
  const auto found = std::ranges::find_if(
      mesh_keys(), [&](const MeshKey& mesh_key) { return key.path == mesh_key.path; });
  const bool resting = found != mesh_keys().end() && rests(config, *found);
  return resting ? value_of_one_rank(key) : key.read(config);
}

std::vector<std::string> mesh_settings(const Config& config) {
  std::vector<std::string> settings;
  for (const MeshKey& mesh_key : mesh_keys()) {
    const ConfigKey& key = *find_config_key(mesh_key.path);
    settings.push_back(key.path + "=" + format_value(key, key.read(config)));
  }
  return settings;
}

}  // namespace sluice::config
