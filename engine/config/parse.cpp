// From TOML text and overrides to a resolved Config.
#include <toml++/toml.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "base/edit_distance.hpp"
#include "base/error.hpp"
#include "base/open_failure.hpp"
#include "base/posix_file.hpp"
#include "engine/config/resolve.hpp"
#include "engine/config/schema.hpp"

namespace sluice::config {

namespace {

constexpr std::size_t kMaxConfigBytes = kMiB;
constexpr std::size_t kMaxComparedBytes = 80;  // of a key that is not known
// The TOML library recurses once for each dot of a key, and 50,000 dots overflow its stack. It
// limits nested arrays and tables to 256 itself, so 64 dots a key keep the depth below 20,000.
constexpr std::size_t kMaxDotsPerKey = 64;

std::string in_quotes(std::string_view text) {
  std::string result = "\"";
  result += shown(text);
  result += '"';
  return result;
}

// Finds the end of the TOML string that begins at `at`. Dots inside of it separate no keys. A
// string of one line ends with its line at the latest: the parser refuses it there.
std::size_t end_of_string(std::string_view text, std::size_t at) {
  const char quote = text[at];
  const std::string delimiter(text.substr(at, 3) == std::string(3, quote) ? 3 : 1, quote);
  const bool multi_line = delimiter.size() == 3;
  for (at += delimiter.size(); at < text.size(); ++at) {
    if (quote == '"' && text[at] == '\\') {
      ++at;
    } else if (!multi_line && text[at] == '\n') {
      return at;
    } else if (text.substr(at, delimiter.size()) == delimiter) {
      at += delimiter.size();
      // A string of several lines may end with two quotes of its own before the delimiter.
      while (multi_line && at < text.size() && text[at] == quote) ++at;
      return at;
    }
  }
  return text.size();
}

// Refuses keys that are nested deeper than the parser's recursion can follow.
void check_nesting(std::string_view text, const std::string& name) {
  std::size_t line = 1;
  std::size_t dots = 0;
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '"' || c == '\'') {
      const std::size_t end = end_of_string(text, at);
      line += static_cast<std::size_t>(std::count(text.begin() + static_cast<std::ptrdiff_t>(at),
                                                  text.begin() + static_cast<std::ptrdiff_t>(end),
                                                  '\n'));
      at = end;
      continue;
    }
    if (c == '#') {
      at = std::min(text.find('\n', at), text.size());
      continue;
    }
    if (c == '\n') ++line;
    if (std::string_view("\n,=[]{}").find(c) != std::string_view::npos) dots = 0;
    if (c == '.' && ++dots > kMaxDotsPerKey) {
      throw InputError(name + ":" + std::to_string(line) + ": a key has more than " +
                       std::to_string(kMaxDotsPerKey) +
                       " dots; memory.place.saved.qkv, the longest kind, has 3");
    }
    ++at;
  }
}

// The known key nearest to an unknown one: by the whole path, or by the last word where that is
// nearer (a known word in the wrong section). Of several keys with that word the whole path
// decides. Empty where none is near.
std::string nearest_key(std::string_view path) {
  path = path.substr(0, kMaxComparedBytes);
  const auto last_word = [](std::string_view text) {
    return text.substr(text.rfind('.') == std::string_view::npos ? 0 : text.rfind('.') + 1);
  };
  std::string_view best;
  std::pair<std::size_t, std::size_t> best_distance{std::string_view::npos, 0};
  for (const ConfigKey& key : config_schema()) {
    const std::size_t whole = edit_distance(path, key.path);
    const std::size_t word = edit_distance(last_word(path), last_word(key.path));
    const bool near =
        may_be_typing_error(path, whole) || may_be_typing_error(last_word(path), word);
    // +1: at equal distance the whole path decides.
    const std::pair distance{std::min(whole, 2 * word + 1), whole};
    if (near && distance < best_distance) {
      best_distance = distance;
      best = key.path;
    }
  }
  return std::string(best);
}

// The known key that was written whole within its section: "log.every" of "log.log.every", which is
// log.every in [log]. Null where there is none.
const ConfigKey* key_within_its_section(std::string_view path) {
  for (std::size_t dot = path.find('.'); dot != std::string_view::npos;
       dot = path.find('.', dot + 1)) {
    const std::string_view rest = path.substr(dot + 1);
    if (rest.starts_with(path.substr(0, dot + 1)) && find_config_key(rest) != nullptr) {
      return find_config_key(rest);
    }
  }
  return nullptr;
}

[[noreturn]] void throw_unknown(const std::string& origin, std::string_view path) {
  if (const ConfigKey* key = key_within_its_section(path)) {
    const std::size_t section = path.size() - key->path.size() - 1;
    throw InputError(origin + ": unknown key '" + shown(path) + "'; did you mean '" + key->path +
                     "', which is '" + key->path.substr(section + 1) + "' in [" +
                     key->path.substr(0, section) + "]?");
  }
  const std::string nearest = nearest_key(path);
  throw InputError(origin + ": unknown key '" + shown(path) + "'; " +
                   (nearest.empty() ? "sluice --help-config lists all keys"
                                    : "did you mean '" + nearest + "'?"));
}

// The table of named places that "memory.place.saved.qkv" is an entry of; null where it is none.
const ConfigKey* table_of_entry(std::string_view path) {
  for (const ConfigKey& key : config_schema()) {
    const bool below =
        path.size() > key.path.size() && path.starts_with(key.path) && path[key.path.size()] == '.';
    if (key.kind == ConfigKind::kPlaces && below) return &key;
  }
  return nullptr;
}

[[noreturn]] void throw_mistyped(const std::string& origin, const ConfigKey& key,
                                 const std::string& given) {
  throw InputError(origin + ": " + key.path + " must be " + describe_expected(key) + "; got " +
                   given);
}

// Values that a file writes in quotes may keep them in --set: log.dir="runs/a".
bool quoted_in_files(ConfigKind kind) {
  switch (kind) {
    case ConfigKind::kText:
    case ConfigKind::kChoice:
    case ConfigKind::kBytes:
    case ConfigKind::kBytesOrAuto:
    case ConfigKind::kIntegerOrAuto:
    case ConfigKind::kRate:
    case ConfigKind::kDuration:
      return true;
    default:
      return false;
  }
}

// The first key of the section that `path` names; null where it names none.
const ConfigKey* first_key_of_section(std::string_view path) {
  for (const ConfigKey& key : config_schema()) {
    const bool below =
        key.path.size() > path.size() && key.path.starts_with(path) && key.path[path.size()] == '.';
    if (below) return &key;
  }
  return nullptr;
}

bool is_section(std::string_view path) {
  return first_key_of_section(path) != nullptr;
}

[[noreturn]] void throw_section(const std::string& origin, std::string_view path) {
  throw InputError(origin + ": " + shown(path) + " is a section; set one of its keys, such as " +
                   first_key_of_section(path)->path);
}

// The given value, for messages.
std::string describe_node(const toml::node& node) {
  if (const auto* text = node.as_string()) return in_quotes(text->get());
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* truth = node.as_boolean()) return truth->get() ? "true" : "false";
  if (const auto* number = node.as_floating_point()) {
    std::ostringstream text;
    text << number->get();
    return text.str();
  }
  if (node.is_table()) return "a table";
  if (node.is_array()) {
    return "a list of " + std::to_string(node.as_array()->size()) + " values";
  }
  return "a date or time";
}

std::optional<double> as_real(const toml::node& node) {
  if (const auto* number = node.as_floating_point()) return number->get();
  if (const auto* number = node.as_integer()) return static_cast<double>(number->get());
  return std::nullopt;
}

std::optional<ConfigValue> list_from_node(const ConfigKey& key, const toml::array& array) {
  std::vector<std::string> texts;
  std::vector<double> numbers;
  for (const toml::node& element : array) {
    if (key.kind == ConfigKind::kTextList && element.is_string()) {
      texts.push_back(element.as_string()->get());
    } else if (const auto number = as_real(element); key.kind != ConfigKind::kTextList && number) {
      numbers.push_back(*number);
    } else {
      return std::nullopt;
    }
  }
  if (key.kind == ConfigKind::kTextList) return ConfigValue(std::move(texts));
  return ConfigValue(std::move(numbers));
}

std::optional<ConfigValue> groups_from_node(const toml::node& node) {
  if (!node.is_array()) return std::nullopt;
  std::vector<model::ParameterGroup> groups;
  for (const toml::node& element : *node.as_array()) {
    if (!element.is_table()) return std::nullopt;
    model::ParameterGroup group;
    for (const auto& [name, value] : *element.as_table()) {
      const auto number = as_real(value);
      if (name == "match" && value.is_string()) {
        group.match = value.as_string()->get();
      } else if (name == "lr_scale" && number) {
        group.lr_scale = *number;
      } else if (name == "weight_decay" && number) {
        group.weight_decay = *number;
      } else {
        return std::nullopt;
      }
    }
    groups.push_back(std::move(group));
  }
  return ConfigValue(std::move(groups));
}

std::optional<ConfigValue> places_from_node(const toml::node& node) {
  if (!node.is_table()) return std::nullopt;
  std::map<std::string, std::string> places;
  for (const auto& [name, value] : *node.as_table()) {
    if (!value.is_string()) return std::nullopt;
    places.emplace(name.str(), value.as_string()->get());
  }
  return ConfigValue(std::move(places));
}

[[noreturn]] void throw_nameless(const std::string& origin, const ConfigKey& key) {
  throw InputError(origin + ": " + key.path +
                   " has an entry whose name is empty; name a part, such as qkv, or \"*\" for all "
                   "that are not named");
}

// Names the entry of a table of named places that is none.
void check_places(const std::string& origin, const ConfigKey& key, const toml::node& node) {
  if (key.kind != ConfigKind::kPlaces || !node.is_table()) return;
  for (const auto& [name, value] : *node.as_table()) {
    const auto* text = value.as_string();
    const auto& choices = key.choices;
    if (name.str().empty()) throw_nameless(origin, key);
    if (text && std::find(choices.begin(), choices.end(), text->get()) != choices.end()) continue;
    throw InputError(origin + ": " + key.path + "." + shown(name.str()) + " must be " +
                     describe_choices(key) + "; got " + describe_node(value));
  }
}

std::optional<ConfigValue> value_from_node(const ConfigKey& key, const toml::node& node) {
  const auto* text = node.as_string();
  switch (key.kind) {
    case ConfigKind::kBool:
      if (const auto* truth = node.as_boolean()) return ConfigValue(truth->get());
      return std::nullopt;
    case ConfigKind::kInteger:
      if (const auto* number = node.as_integer()) return ConfigValue(number->get());
      return std::nullopt;
    case ConfigKind::kText:
    case ConfigKind::kChoice:
      return text ? std::optional(ConfigValue(text->get())) : std::nullopt;
    case ConfigKind::kBytes:
    case ConfigKind::kBytesOrAuto:
    case ConfigKind::kIntegerOrAuto:
      if (const auto* number = node.as_integer()) return ConfigValue(number->get());
      return text ? value_from_text(key, text->get()) : std::nullopt;
    case ConfigKind::kReal:
    case ConfigKind::kRate:
    case ConfigKind::kDuration:
      if (const auto number = as_real(node)) return ConfigValue(*number);
      return text && key.kind != ConfigKind::kReal ? value_from_text(key, text->get())
                                                   : std::nullopt;
    case ConfigKind::kTextList:
      if (text) return ConfigValue(std::vector<std::string>{text->get()});
      [[fallthrough]];
    case ConfigKind::kRealPair:
    case ConfigKind::kRealList:
      return node.is_array() ? list_from_node(key, *node.as_array()) : std::nullopt;
    case ConfigKind::kGroups:
      return groups_from_node(node);
    case ConfigKind::kPlaces:
      return places_from_node(node);
  }
  return std::nullopt;
}

bool written_as_toml(ConfigKind kind) {
  return kind == ConfigKind::kGroups || kind == ConfigKind::kPlaces;
}

std::optional<ConfigValue> value_from_toml(const std::string& origin, const ConfigKey& key,
                                           std::string_view text) {
  try {
    check_nesting(text, origin);
    const toml::table table = toml::parse("value = " + std::string(text));
    if (table.size() != 1) return std::nullopt;
    check_places(origin, key, *table.get("value"));
    return value_from_node(key, *table.get("value"));
  } catch (const toml::parse_error&) {
    return std::nullopt;
  }
}

// Collects values and where each came from.
class Loader {
 public:
  explicit Loader(std::string name) : origins_(std::move(name)) {}

  void add_table(const toml::table& table, const std::string& prefix) {
    for (const auto& [name, node] : table) {
      const std::string path =
          prefix.empty() ? std::string(name.str()) : prefix + "." + std::string(name.str());
      const std::string origin = origin_of(node, name);
      if (const ConfigKey* key = find_config_key(path)) {
        check_places(origin, *key, node);
        const auto value = value_from_node(*key, node);
        if (!value || !in_range(*key, *value)) throw_mistyped(origin, *key, describe_node(node));
        store(*key, *value, origin);
      } else if (is_section(path)) {
        if (!node.is_table()) {
          throw InputError(origin + ": " + path + " is a section, written [" + path + "]; got " +
                           describe_node(node));
        }
        add_table(*node.as_table(), path);  // as deep as the schema, no deeper
      } else {
        throw_unknown_below(origin, path, node);
      }
    }
  }

  void add_override(std::string_view assignment) {
    origins_.begin_override();
    const auto equals = assignment.find('=');
    const std::string origin = "--set " + shown(assignment);
    if (equals == std::string_view::npos || equals == 0) {
      throw InputError(origin + ": write key=value, such as memory.device=64MiB");
    }
    const auto path = assignment.substr(0, equals);
    const auto text = assignment.substr(equals + 1);
    const ConfigKey* key = find_config_key(path);
    if (const ConfigKey* table = key ? nullptr : table_of_entry(path)) {
      return add_place(*table, without_quotes(path.substr(table->path.size() + 1)),
                       without_quotes(text), origin);
    }
    if (!key && is_section(path)) throw_section(origin, path);
    if (!key) throw_unknown(origin, path);
    const auto value =
        written_as_toml(key->kind)
            ? value_from_toml(origin, *key, text)
            : value_from_text(*key, quoted_in_files(key->kind) ? without_quotes(text) : text);
    if (!value || !in_range(*key, *value)) {
      throw_mistyped(origin, *key, in_quotes(text));
    }
    store(*key, *value, origin);
  }

  Config finish() {
    resolve_config(config_, origins_);
    return std::move(config_);
  }

 private:
  std::string origin_of(const toml::node& node, const toml::key& key) const {
    // A table's own source is its header; a value's key stands on the line that is meant.
    const auto line =
        key.source().begin.line != 0 ? key.source().begin.line : node.source().begin.line;
    return line == 0 ? origins_.file() : origins_.file() + ':' + std::to_string(line);
  }

  void store(const ConfigKey& key, const ConfigValue& value, const std::string& origin) {
    key.assign(config_, value);
    origins_.set(key.path, origin);
    if (const auto* places = std::get_if<std::map<std::string, std::string>>(&value)) {
      for (const auto& [name, place] : *places) origins_.set(key.path + "." + name, origin);
    }
  }

  // One entry of a table; its others stay.
  void add_place(const ConfigKey& key, std::string_view name, std::string_view place,
                 const std::string& origin) {
    if (name.empty()) throw_nameless(origin, key);
    auto places = std::get<std::map<std::string, std::string>>(key.read(config_));
    places[std::string(name)] = std::string(place);
    if (!in_range(key, ConfigValue(places))) {
      throw InputError(origin + ": " + key.path + "." + shown(name) + " must be " +
                       describe_choices(key) + "; got " + in_quotes(place));
    }
    key.assign(config_, ConfigValue(std::move(places)));
    origins_.set(key.path + "." + std::string(name), origin);
  }

  // An unknown table is reported by its first key, which tells more: [memroy] device →
  // memory.device.
  [[noreturn]] void throw_unknown_below(std::string origin, std::string path,
                                        const toml::node& node) const {
    if (const auto* table = node.as_table(); table && !table->empty()) {
      const auto first = table->begin();  // kept: its pair lives in the iterator
      origin = origin_of(first->second, first->first);
      path += "." + std::string(first->first.str());
    }
    throw_unknown(origin, path);
  }

  Config config_;
  ConfigOrigins origins_;
};

}  // namespace

Config parse_config(std::string_view text, const std::string& name,
                    std::span<const std::string> overrides) {
  if (text.size() > kMaxConfigBytes) {
    throw InputError(name + " has " + std::to_string(text.size()) +
                     " bytes; a configuration has at most " + format_bytes_exact(kMaxConfigBytes));
  }
  check_nesting(text, name);
  Loader loader(name);
  try {
    const toml::table table = toml::parse(text, name);
    loader.add_table(table, "");
  } catch (const toml::parse_error& error) {
    throw InputError(name + ":" + std::to_string(error.source().begin.line) +
                     ": not valid TOML: " + shown(error.description()));
  }
  for (const auto& assignment : overrides) loader.add_override(assignment);
  return loader.finish();
}

Config load_config(const std::string& path, std::span<const std::string> overrides) {
  // One byte more than allowed, so that parse_config sees that there is more.
  std::string text(kMaxConfigBytes + 1, '\0');
  try {
    const PosixFile file = PosixFile::open_read(path);
    text.resize(file.read_some(0, std::as_writable_bytes(std::span(text))));
  } catch (const IoError& error) {
    throw InputError(path + " cannot be read (" + open_failure(error) +
                     "); give a configuration file in TOML");
  }
  return parse_config(text, path, overrides);
}

}  // namespace sluice::config
