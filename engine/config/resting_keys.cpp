// Keys that have a meaning with certain values of other keys alone: those of several ranks, of
// some optimizer rules, of fp16.
//
// A value that nothing takes would be taken for a setting that works, so it is refused where it
// stands with such values. A configuration may be run with other ones, by an override:
// `--set parallel.pipeline=1` or `--set optimizer.name=adamw`. Its keys then rest. The
// configuration that a run writes leaves resting keys at their defaults, since a resume reads them
// with its own mesh and rule.
//
// parallel.zero is none of them: shards of one rank are whole, and a run that goes on with more
// ranks keeps its stage.
#include <algorithm>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "engine/config/resolve.hpp"
#include "engine/config/schema.hpp"

namespace sluice::config {
namespace {

// The key `path` rests where each of `others` has a value that gives it no meaning. A path may
// stand in several rows.
struct RestingKey {
  const char* path;
  std::vector<const char*> others;
  // Choices of the other key, the only one, with which the key has a meaning. Empty: the others
  // are counts of ranks, with which it has one where any is above 1.
  std::vector<std::string> readers = {};

  bool counts_ranks() const { return readers.empty(); }
};

const std::vector<RestingKey>& resting_keys() {
  static const std::vector<RestingKey> keys{
      {"memory.place.partial", {"parallel.data"}},
      {"parallel.server", {"parallel.data"}},
      {"parallel.reduction", {"parallel.data"}},
      {"parallel.node_ranks", {"parallel.data"}},
      {"parallel.bucket", {"parallel.data"}},
      {"parallel.context_attention", {"parallel.context"}},
      {"parallel.transport",
       {"parallel.data", "parallel.pipeline", "parallel.tensor", "parallel.context"}},
      {"parallel.schedule", {"parallel.pipeline"}},
      {"parallel.virtual_stages", {"parallel.pipeline"}},
      {"optimizer.betas", {"optimizer.name"}, {"adamw", "adam", "lion", "sm3", "muon"}},
      {"optimizer.eps", {"optimizer.name"}, {"adamw", "adam", "muon"}},
      {"optimizer.momentum", {"optimizer.name"}, {"sgd", "muon"}},
      {"optimizer.nesterov", {"optimizer.name"}, {"sgd"}},
      {"optimizer.beta2_decay", {"optimizer.name"}, {"adafactor"}},
      {"optimizer.clip_threshold", {"optimizer.name"}, {"adafactor"}},
      {"train.loss_scaling", {"train.precision"}, {"fp16"}},
      {"train.loss_scale", {"train.precision"}, {"fp16"}},
      {"train.loss_scale_window", {"train.precision"}, {"fp16"}},
      {"train.loss_scale_window", {"train.loss_scaling"}, {"dynamic"}},
      {"train.loss_scale_patience", {"train.precision"}, {"fp16"}}};
  return keys;
}

bool rests(const Config& config, const RestingKey& key) {
  return std::ranges::all_of(key.others, [&](const char* other) {
    const ConfigValue value = find_config_key(other)->read(config);
    if (key.counts_ranks()) return std::get<std::int64_t>(value) == 1;
    return std::ranges::find(key.readers, std::get<std::string>(value)) == key.readers.end();
  });
}

// Whether an override of the other keys came after the key.
bool other_is_later(const ConfigOrigins& origins, const RestingKey& key) {
  return std::ranges::any_of(key.others,
                             [&](const char* other) { return origins.is_later(other, key.path); });
}

std::string circumstance(const Config& config, const RestingKey& key) {
  if (key.others.size() > 1) return "one rank";
  const ConfigKey& other = *find_config_key(key.others.front());
  return other.path + " = " + format_value(other, other.read(config));
}

// The value of a configuration that names neither a mesh nor a rule.
ConfigValue resting_value(const ConfigKey& key) {
  Config config;
  config.parallel.virtual_stages = 1;
  return key.read(config);
}

// "; leave it out, or use "sgd" or "muon"".
std::string advice(const RestingKey& key) {
  std::string text = "; leave it out";
  for (std::size_t i = 0; i < key.readers.size(); ++i) {
    text += i == 0 ? ", or use " : i + 1 == key.readers.size() ? " or " : ", ";
    text += "\"" + key.readers[i] + "\"";
  }
  return text;
}

}  // namespace

void check_resting_keys(const Config& config, const ConfigOrigins& origins) {
  for (const RestingKey& resting : resting_keys()) {
    const ConfigKey& key = *find_config_key(resting.path);
    if (!origins.given(key.path) || !rests(config, resting) || other_is_later(origins, resting) ||
        key.read(config) == resting_value(key)) {
      continue;
    }
    throw InputError(origins.of(key.path) + ": " + key.path + " = " +
                     format_value(key, key.read(config)) + " has no meaning with " +
                     circumstance(config, resting) + advice(resting));
  }
}

bool rests(const Config& config, const ConfigKey& key) {
  return std::ranges::any_of(resting_keys(), [&](const RestingKey& resting) {
    return key.path == resting.path && rests(config, resting);
  });
}

ConfigValue written_value(const Config& config, const ConfigKey& key) {
  return rests(config, key) ? resting_value(key) : key.read(config);
}

Config rested(const Config& config) {
  Config result = config;
  for (const RestingKey& resting : resting_keys()) {
    const ConfigKey& key = *find_config_key(resting.path);
    key.assign(result, written_value(config, key));
  }
  return result;
}

std::vector<std::string> mesh_settings(const Config& config) {
  std::vector<std::string> settings;
  for (const RestingKey& resting : resting_keys()) {
    if (!resting.counts_ranks()) continue;
    const ConfigKey& key = *find_config_key(resting.path);
    settings.push_back(key.path + "=" + format_value(key, key.read(config)));
  }
  return settings;
}

}  // namespace sluice::config
