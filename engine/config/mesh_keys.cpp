// Keys that have a meaning among several ranks alone.
//
// A value that nothing takes would be taken for a setting that works, so it is refused where it
// stands beside one rank. A configuration for many ranks may be run on fewer, by an override of its
// mesh: `--set parallel.pipeline=1`. Its keys then rest. The configuration that a run writes leaves
// resting keys at their defaults, since a resume reads them beside its own mesh.
#include <algorithm>
#include <array>
#include <vector>

#include "base/error.hpp"
#include "engine/config/resolve.hpp"
#include "engine/config/schema.hpp"

namespace sluice::config {
namespace {

struct MeshKey {
  const char* path;
  const char* count;  // the key has no meaning where it is 1
};

constexpr std::array<MeshKey, 7> kMeshKeys{{{"memory.place.partial", "parallel.data"},
                                            {"parallel.server", "parallel.data"},
                                            {"parallel.reduction", "parallel.data"},
                                            {"parallel.node_ranks", "parallel.data"},
                                            {"parallel.bucket", "parallel.data"},
                                            {"parallel.schedule", "parallel.pipeline"},
                                            {"parallel.virtual_stages", "parallel.pipeline"}}};

bool rests(const Config& config, const MeshKey& key) {
  return std::get<std::int64_t>(find_config_key(key.count)->read(config)) == 1;
}

// The value of a configuration that names no mesh.
ConfigValue value_of_one_rank(const ConfigKey& key) {
  Config config;
  config.parallel.virtual_stages = 1;
  return key.read(config);
}

}  // namespace

void check_mesh_keys(const Config& config, const ConfigOrigins& origins) {
  for (const MeshKey& mesh_key : kMeshKeys) {
    const ConfigKey& key = *find_config_key(mesh_key.path);
    if (!origins.given(key.path) || !rests(config, mesh_key) ||
        origins.is_later(mesh_key.count, key.path) || key.read(config) == value_of_one_rank(key)) {
      continue;
    }
    throw InputError(origins.of(key.path) + ": " + key.path + " = " +
                     format_value(key, key.read(config)) + " has no meaning with " +
                     mesh_key.count + " = 1; leave it out");
  }
}

ConfigValue written_value(const Config& config, const ConfigKey& key) {
  const auto found = std::ranges::find_if(
      kMeshKeys, [&](const MeshKey& mesh_key) { return key.path == mesh_key.path; });
  const bool resting = found != kMeshKeys.end() && rests(config, *found);
  return resting ? value_of_one_rank(key) : key.read(config);
}

std::vector<std::string> mesh_settings(const Config& config) {
  std::vector<std::string> settings;
  for (const MeshKey& mesh_key : kMeshKeys) {
    const ConfigKey& key = *find_config_key(mesh_key.path);
    settings.push_back(key.path + "=" + format_value(key, key.read(config)));
  }
  return settings;
}

}  // namespace sluice::config
