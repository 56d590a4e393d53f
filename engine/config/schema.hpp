// The table of configuration keys, and the values that pass between text and Config.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/config/config.hpp"

namespace sluice::config {

// Kinds of values. A choice and a text are both strings; bytes are an integer or "64MiB"; the kinds
// "OrAuto" also take "auto"; a rate is a number of bytes per second or "16GiB/s"; a duration is
// seconds or "10us".
enum class ConfigKind : std::uint8_t {
  kBool,
  kInteger,
  kIntegerOrAuto,
  kReal,
  kText,
  kChoice,
  kBytes,
  kBytesOrAuto,
  kRate,
  kDuration,
  kTextList,
  kRealPair,
  kRealList,
  kGroups,
  kPlaces,
};

// kBool bool; kInteger and kBytes int64; the kinds "OrAuto" int64 or the string "auto"; kReal,
// kRate and kDuration double; kText and kChoice string; kGroups parameter groups; kPlaces a map of
// names to one of `choices`.
using ConfigValue = std::variant<bool, std::int64_t, double, std::string, std::vector<std::string>,
                                 std::vector<double>, std::vector<model::ParameterGroup>,
                                 std::map<std::string, std::string>>;

struct ConfigKey {
  std::string path;  // "memory.place.weight"
  ConfigKind kind = ConfigKind::kText;
  std::string doc;
  std::string derived_default;  // its text in the help, if the default is computed
  // kChoice and kPlaces, in the enumerators' order. A choice "word:K" has a count from least to
  // most.
  std::vector<std::string> choices;
  std::int64_t least = 0, most = 0;  // integers and bytes; kChoice with a count
  std::int64_t multiple_of = 1;      // kBytes
  double lower = 0.0, upper = 0.0;   // kReal, kRate, kDuration, each of kRealPair, kRealList
  bool upper_excluded = false, lower_excluded = false;
  bool required = false;
  bool determines_result = false;  // part of result_settings()
  std::function<ConfigValue(const Config&)> read;
  std::function<void(Config&, const ConfigValue&)> assign;  // of an accepted value
};

// All keys, in the order of the documentation.
const std::vector<ConfigKey>& config_schema();
// Null where there is none.
const ConfigKey* find_config_key(std::string_view path);

// Describes the accepted values, for messages and the help: "an integer from 1 to 4096".
std::string describe_expected(const ConfigKey& key);
// Its choices: "\"device\" or \"pinned\"".
std::string describe_choices(const ConfigKey& key);
// Which of the key's values check_supported() refuses, as words that go after its path: "above 1";
// empty: none.
std::string unavailable_values(std::string_view path);
// A value as TOML; parse it again and the same value comes out.
std::string format_value(const ConfigKey& key, const ConfigValue& value);
// Without one pair of quotes around it, if there is one.
std::string_view without_quotes(std::string_view text);
// Parses the text of a `--set` for this key; empty if it is no such value. Ranges are not checked.
// It does not serve kGroups and kPlaces, which are written as TOML.
std::optional<ConfigValue> value_from_text(const ConfigKey& key, std::string_view text);
// Whether other values leave the key without a meaning: a key of several ranks with one, a key of
// another optimizer rule, a key of fp16 with another precision.
bool rests(const Config& config, const ConfigKey& key);
// The key's value in a configuration as a run writes it: the default of a key that rests.
ConfigValue written_value(const Config& config, const ConfigKey& key);
// The configuration with the defaults of all keys that rest. Rank 0 plans with it, for the other
// ranks read it as it is written.
Config rested(const Config& config);
// The keys that have a meaning among several ranks alone, as "key=value". With them
// config_to_toml() gives an equal Config on another mesh, too.
std::vector<std::string> mesh_settings(const Config& config);
// Whether a value of the right type is in the key's range.
bool in_range(const ConfigKey& key, const ConfigValue& value);

}  // namespace sluice::config
