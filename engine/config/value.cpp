// Values of configuration keys: text to value, value to text, ranges.
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "engine/config/schema.hpp"

namespace sluice::config {

namespace {

constexpr double kMostGroupScale = 1e3;

template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Shortest decimal that reads back to the same double.
std::string format_real(double value) {
  std::array<char, 64> buffer{};
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  std::string text(buffer.data(), error == std::errc() ? end : buffer.data());
  // TOML tells an integer from a float by its point or exponent; keys that take reals take both.
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

// A TOML basic string.
std::string quote(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      std::array<char, 8> escape{};
      std::snprintf(escape.data(), escape.size(), "\\u%04X", byte);
      result += escape.data();
    } else {
      result += c;
    }
  }
  return result + '"';
}

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// "a, b" and "[a, b]" alike; quotes around an element are taken off.
std::vector<std::string_view> split_list(std::string_view text) {
  text = trim(text);
  if (text.size() >= 2 && text.front() == '[' && text.back() == ']') {
    text = trim(text.substr(1, text.size() - 2));
  }
  std::vector<std::string_view> elements;
  while (!text.empty()) {
    const auto comma = text.find(',');
    auto element = trim(text.substr(0, comma));
    elements.push_back(without_quotes(element));
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  return elements;
}

std::optional<ConfigValue> parse_duration(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, double>, 4> units{
      {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1.0}}};
  for (const auto& [suffix, seconds] : units) {
    if (!text.ends_with(suffix)) continue;
    const auto number = parse_number<double>(text.substr(0, text.size() - suffix.size()));
    if (!number) return std::nullopt;
    return ConfigValue(*number * seconds);
  }
  const auto number = parse_number<double>(text);
  return number ? std::optional(ConfigValue(*number)) : std::nullopt;
}

std::optional<ConfigValue> parse_rate(std::string_view text) {
  if (text.ends_with("/s")) text.remove_suffix(2);
  if (const auto number = parse_number<double>(text)) return ConfigValue(*number);
  const auto bytes = parse_bytes(text);
  return bytes ? std::optional(ConfigValue(static_cast<double>(*bytes))) : std::nullopt;
}

std::optional<ConfigValue> parse_byte_count(std::string_view text) {
  const auto bytes = parse_bytes(text);
  if (!bytes || *bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return std::nullopt;
  }
  return ConfigValue(static_cast<std::int64_t>(*bytes));
}

std::string describe_reals(const ConfigKey& key) {
  return std::string(key.lower_excluded ? "above " : "from ") + format_real(key.lower) +
         (key.upper_excluded ? " to below " : " to ") + format_real(key.upper);
}

bool real_in_range(const ConfigKey& key, double value) {
  // Written so that NaN fails.
  const bool low = key.lower_excluded ? value > key.lower : value >= key.lower;
  const bool high = key.upper_excluded ? value < key.upper : value <= key.upper;
  return low && high;
}

// Whether `text` is this choice. A choice that ends in ":K" stands for one with a count in the
// key's range, and one that ends in ":FILE" for one with a path.
bool is_choice(const ConfigKey& key, std::string_view choice, std::string_view text) {
  constexpr std::string_view kFile = ":FILE";
  if (choice.ends_with(kFile)) {
    const std::string_view start = choice.substr(0, choice.size() - kFile.size() + 1);
    return text.starts_with(start) && text.size() > start.size() && text != choice &&
           text.find('\0') == std::string_view::npos;
  }
  if (!choice.ends_with(":K")) return text == choice;
  const std::string_view start = choice.substr(0, choice.size() - 1);
  if (!text.starts_with(start)) return false;
  const auto count = parse_number<std::int64_t>(text.substr(start.size()));
  return count && *count >= key.least && *count <= key.most;
}

}  // namespace

std::string_view without_quotes(std::string_view text) {
  const bool quoted = text.size() >= 2 && (text.front() == '"' || text.front() == '\'') &&
                      text.back() == text.front();
  return quoted ? text.substr(1, text.size() - 2) : text;
}

std::string describe_choices(const ConfigKey& key) {
  std::string text;
  for (std::size_t i = 0; i < key.choices.size(); ++i) {
    if (i > 0) text += i + 1 == key.choices.size() ? " or " : ", ";
    text += quote(key.choices[i]);
  }
  if (key.kind == ConfigKind::kChoice && key.most > 0) {
    text += " with K from " + std::to_string(key.least) + " to " + std::to_string(key.most);
  }
  return text;
}

std::string describe_expected(const ConfigKey& key) {
  switch (key.kind) {
    case ConfigKind::kBool:
      return "true or false";
    case ConfigKind::kInteger:
      return "an integer from " + std::to_string(key.least) + " to " + std::to_string(key.most);
    case ConfigKind::kIntegerOrAuto:
      return "\"auto\" or an integer from " + std::to_string(key.least) + " to " +
             std::to_string(key.most);
    case ConfigKind::kReal:
      return "a number " + describe_reals(key);
    case ConfigKind::kText:
      return "a string";
    case ConfigKind::kChoice:
      return describe_choices(key);
    case ConfigKind::kBytes:
    case ConfigKind::kBytesOrAuto: {
      const auto size = [](std::int64_t bytes) {
        return format_bytes_exact(static_cast<std::uint64_t>(bytes));
      };
      std::string text = key.kind == ConfigKind::kBytesOrAuto ? "\"auto\" or " : "";
      text += "a byte count such as \"64MiB\", from " + size(key.least) + " to " + size(key.most);
      if (key.multiple_of > 1) text += ", a multiple of " + size(key.multiple_of);
      return text;
    }
    case ConfigKind::kRate:
      return "bytes per second, a number or such as \"16GiB/s\", " + describe_reals(key);
    case ConfigKind::kDuration:
      return "seconds, a number or such as \"10us\", " + describe_reals(key);
    case ConfigKind::kTextList:
      return "a list of strings, none of them empty";
    case ConfigKind::kRealPair:
      return "a list of two numbers, each " + describe_reals(key);
    case ConfigKind::kRealList:
      return "a list of numbers, each " + describe_reals(key);
    case ConfigKind::kGroups:
      return "a list of tables such as { match = \"*.bias\", lr_scale = 0.5, weight_decay = 0.0 }, "
             "with match (a pattern of tensor names) and, from 0 to " +
             format_real(kMostGroupScale) + ", lr_scale or weight_decay";
    case ConfigKind::kPlaces:
      return "a table such as { mlp_hidden = \"storage\", \"*\" = \"device\" }, each " +
             describe_choices(key);
  }
  return {};
}

std::string format_value(const ConfigKey& key, const ConfigValue& value) {
  switch (key.kind) {
    case ConfigKind::kBool:
      return std::get<bool>(value) ? "true" : "false";
    case ConfigKind::kIntegerOrAuto:
      if (const auto* text = std::get_if<std::string>(&value)) return quote(*text);
      [[fallthrough]];
    case ConfigKind::kInteger:
      return std::to_string(std::get<std::int64_t>(value));
    case ConfigKind::kReal:
    case ConfigKind::kRate:
    case ConfigKind::kDuration:
      return format_real(std::get<double>(value));
    case ConfigKind::kText:
    case ConfigKind::kChoice:
      return quote(std::get<std::string>(value));
    case ConfigKind::kBytesOrAuto:
      if (const auto* text = std::get_if<std::string>(&value)) return quote(*text);
      [[fallthrough]];
    case ConfigKind::kBytes:
      return quote(format_bytes_exact(static_cast<std::uint64_t>(std::get<std::int64_t>(value))));
    case ConfigKind::kTextList: {
      std::string text;
      for (const auto& element : std::get<std::vector<std::string>>(value)) {
        if (!text.empty()) text += ", ";
        text += quote(element);
      }
      return std::string("[").append(text).append("]");
    }
    case ConfigKind::kRealPair:
    case ConfigKind::kRealList: {
      std::string text;
      for (const double number : std::get<std::vector<double>>(value)) {
        if (!text.empty()) text += ", ";
        text += format_real(number);
      }
      return std::string("[").append(text).append("]");
    }
    case ConfigKind::kGroups: {
      std::string text;
      for (const model::ParameterGroup& group :
           std::get<std::vector<model::ParameterGroup>>(value)) {
        if (!text.empty()) text += ", ";
        text += "{ match = " + quote(group.match) + ", lr_scale = " + format_real(group.lr_scale);
        if (group.weight_decay) text += ", weight_decay = " + format_real(*group.weight_decay);
        text += " }";
      }
      return std::string("[").append(text).append("]");
    }
    case ConfigKind::kPlaces: {
      std::string text;
      for (const auto& [name, place] : std::get<std::map<std::string, std::string>>(value)) {
        text += text.empty() ? " " : ", ";
        text += quote(name) + " = " + quote(place);
      }
      return text.empty() ? "{}" : "{" + text + " }";
    }
  }
  return {};
}

std::optional<ConfigValue> value_from_text(const ConfigKey& key, std::string_view text) {
  switch (key.kind) {
    case ConfigKind::kBool:
      if (text == "true") return ConfigValue(true);
      if (text == "false") return ConfigValue(false);
      return std::nullopt;
    case ConfigKind::kIntegerOrAuto:
      if (text == "auto") return ConfigValue(std::string(text));
      [[fallthrough]];
    case ConfigKind::kInteger: {
      const auto number = parse_number<std::int64_t>(text);
      return number ? std::optional(ConfigValue(*number)) : std::nullopt;
    }
    case ConfigKind::kReal: {
      const auto number = parse_number<double>(text);
      return number ? std::optional(ConfigValue(*number)) : std::nullopt;
    }
    case ConfigKind::kText:
    case ConfigKind::kChoice:
      return ConfigValue(std::string(text));
    case ConfigKind::kBytesOrAuto:
      if (text == "auto") return ConfigValue(std::string(text));
      [[fallthrough]];
    case ConfigKind::kBytes:
      return parse_byte_count(text);
    case ConfigKind::kRate:
      return parse_rate(text);
    case ConfigKind::kDuration:
      return parse_duration(text);
    case ConfigKind::kTextList: {
      std::vector<std::string> elements;
      for (const auto element : split_list(text)) elements.emplace_back(element);
      return ConfigValue(std::move(elements));
    }
    case ConfigKind::kRealPair:
    case ConfigKind::kRealList: {
      std::vector<double> numbers;
      for (const auto element : split_list(text)) {
        const auto number = parse_number<double>(element);
        if (!number) return std::nullopt;
        numbers.push_back(*number);
      }
      return ConfigValue(std::move(numbers));
    }
    case ConfigKind::kGroups:
    case ConfigKind::kPlaces:
      break;
  }
  return std::nullopt;
}

bool in_range(const ConfigKey& key, const ConfigValue& value) {
  switch (key.kind) {
    case ConfigKind::kBool:
      return true;
    case ConfigKind::kIntegerOrAuto:
    case ConfigKind::kBytesOrAuto:
      if (std::holds_alternative<std::string>(value)) return true;
      [[fallthrough]];
    case ConfigKind::kInteger:
    case ConfigKind::kBytes: {
      const auto number = std::get<std::int64_t>(value);
      return number >= key.least && number <= key.most && number % key.multiple_of == 0;
    }
    case ConfigKind::kReal:
    case ConfigKind::kRate:
    case ConfigKind::kDuration:
      return real_in_range(key, std::get<double>(value));
    case ConfigKind::kChoice:
      return std::any_of(key.choices.begin(), key.choices.end(), [&](const std::string& choice) {
        return is_choice(key, choice, std::get<std::string>(value));
      });
    case ConfigKind::kText:
      // Paths end at a NUL: a text with one would name another file than it shows.
      return std::get<std::string>(value).find('\0') == std::string::npos;
    case ConfigKind::kTextList:
      for (const auto& element : std::get<std::vector<std::string>>(value)) {
        if (element.empty() || element.find('\0') != std::string::npos) return false;
      }
      return true;
    case ConfigKind::kRealPair: {
      const auto& pair = std::get<std::vector<double>>(value);
      return pair.size() == 2 && real_in_range(key, pair[0]) && real_in_range(key, pair[1]);
    }
    case ConfigKind::kRealList: {
      const auto& list = std::get<std::vector<double>>(value);
      return std::all_of(list.begin(), list.end(),
                         [&](double number) { return real_in_range(key, number); });
    }
    case ConfigKind::kGroups:
      for (const model::ParameterGroup& group :
           std::get<std::vector<model::ParameterGroup>>(value)) {
        const auto fits = [](double number) { return number >= 0 && number <= kMostGroupScale; };
        if (group.match.empty() || group.match.find('\0') != std::string::npos ||
            !fits(group.lr_scale) || !fits(group.weight_decay.value_or(0.0))) {
          return false;
        }
      }
      return true;
    case ConfigKind::kPlaces:
      for (const auto& [name, place] : std::get<std::map<std::string, std::string>>(value)) {
        const bool known =
            std::find(key.choices.begin(), key.choices.end(), place) != key.choices.end();
        if (name.empty() || !known) return false;
      }
      return true;
  }
  return false;
}

}  // namespace sluice::config
