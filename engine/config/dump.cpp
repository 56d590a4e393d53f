// The resolved configuration and the list of keys as text, all read off the schema.
#include <algorithm>

#include "base/digest.hpp"
#include "base/json_text.hpp"
#include "engine/config/resolve.hpp"
#include "engine/config/schema.hpp"

namespace sluice::config {
// A derived value follows the keys that it is derived from when one of them is changed later, so it
// stands in a comment. One that determines the result is pinned: with another value a run could not
// go on.
std::string config_to_toml(const Config& config) {
  const Config anew = derived_anew(config);
  const std::map<std::string, std::string> decisive = result_settings(config);
  const auto is_derived = [&](const ConfigKey& key) {
    return !key.derived_default.empty() && !decisive.contains(key.path) &&
           key.read(config) == key.read(anew);
  };
  std::string text;
  std::string section;
  for (const ConfigKey& key : config_schema()) {
    const auto top = key.path.substr(0, key.path.find('.'));
    if (top != section) {
      text += (section.empty() ? "[" : "\n[") + top + "]\n";
      section = top;
    }
    text += is_derived(key) ? "# derived: " : "";
    text += key.path.substr(top.size() + 1) + " = " +
            format_value(key, written_value(config, key)) + "\n";
  }
  return text;
}

std::string config_help() {
  std::string text;
  std::string section;
  const Config defaults;
  for (const ConfigKey& key : config_schema()) {
    const auto top = key.path.substr(0, key.path.find('.'));
    if (top != section) {
      text += (section.empty() ? "[" : "\n[") + top + "]\n";
      section = top;
    }
    const std::string standard = key.required ? "required"
                                 : !key.derived_default.empty()
                                     ? "default: " + key.derived_default
                                     : "default: " + format_value(key, key.read(defaults));
    text += "  " + key.path + "\n      " + key.doc + "\n      " + describe_expected(key) + "; " +
            standard + "\n";
    const std::string refused = unavailable_values(key.path);
    if (!refused.empty()) text += "      not in this version: " + key.path + " " + refused + "\n";
  }
  return text;
}

namespace {

// Whether the optimizer updates parts of stored tensors as matrices of their own (ParameterTable).
bool updates_logical_matrices(const Config& config) {
  kernels::OptimizerOptions options;
  options.rule = config.optimizer.name;
  return config.model.family == Config::Family::kLlama && kernels::needs_whole_tensors(options);
}

}  // namespace

namespace {

// Delayed updates depend on the weights that a micro-batch reads: on the rule and on the place
// where the pipeline drains. Under 2BW those are the weights of an update. Under PipeDream they
// follow the passes of a pipeline: its ranks set how far a micro-batch runs ahead, and the number
// of pipelines sets the micro-batches of each.
void add_delays(const Config& config, std::map<std::string, std::string>& settings) {
  if (!config.parallel.delays_updates()) return;
  if (config.parallel.has_server_order()) {
    // Servers that take turns make the steps of one server.
    if (config.parallel.server_mode == Config::ServerMode::kRotating) return;
    for (const ConfigKey& key : config_schema()) {
      if (key.path == "parallel.server_mode" || key.path == "parallel.updates" ||
          key.path == "parallel.data") {
        settings[key.path] = format_value(key, key.read(config));
      }
    }
    return;
  }
  for (const ConfigKey& key : config_schema()) {
    const bool counts_ranks = (key.path == "parallel.pipeline" || key.path == "parallel.data") &&
                              config.parallel.schedule != Config::PipelineSchedule::kTwoBw;
    if (key.path == "parallel.schedule" || key.path == "parallel.updates" || counts_ranks) {
      settings[key.path] = format_value(key, key.read(config));
    }
  }
}

}  // namespace

std::map<std::string, std::string> result_settings(const Config& config) {
  std::map<std::string, std::string> settings;
  for (const ConfigKey& key : config_schema()) {
    if (!key.determines_result || rests(config, key)) continue;
    // Only the cosine looks at the number of steps.
    if (key.path == "train.steps" && config.optimizer.schedule == Config::LrSchedule::kConstant) {
      continue;
    }
    settings[key.path] = format_value(key, key.read(config));
  }
  // A ring's order of additions depends on the number of ranks. Alone there is no ring.
  if (config.parallel.data > 1 && config.parallel.reduction == Config::GradientSum::kRing) {
    settings["parallel.data"] = std::to_string(config.parallel.data);
  } else {
    settings.erase("parallel.reduction");
  }
  add_delays(config, settings);
  if (updates_logical_matrices(config)) settings[std::string(kMatricesSetting)] = "logical";
  return settings;
}

std::map<std::string, std::string> durable_settings(const Config& config) {
  std::map<std::string, std::string> settings = result_settings(config);
  for (const char* path : kGroupKeys) {
    const ConfigKey& key = *find_config_key(path);
    settings[path] = format_value(key, key.read(config));
  }
  return settings;
}

}  // namespace sluice::config
