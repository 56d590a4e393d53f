#include "tools/report/untrusted_json.hpp"

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/error.hpp"
#include "base/json_text.hpp"
#include "base/units.hpp"

namespace sluice::report {

namespace {

using Json = nlohmann::json;
using Path = std::filesystem::path;

// The engine's files are three deep.
constexpr int kMaxJsonDepth = 16;

}  // namespace

void refuse(const Path& file, const std::string& reason) {
  throw InputError(file.string() + ": " + reason);
}

std::string read_file(const Path& file, std::uint64_t max_bytes) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (!std::filesystem::exists(status)) {
    refuse(file, "no such file; name the directory of a run, or the log.dir that it lies in");
  }
  if (!std::filesystem::is_regular_file(status)) refuse(file, "not a regular file");
  std::ifstream in(file, std::ios::binary);
  if (!in) refuse(file, "cannot be opened for reading");
  const std::uint64_t bytes = std::filesystem::file_size(file, error);
  if (error) refuse(file, "its size cannot be read: " + error.message());
  if (bytes > max_bytes) {
    refuse(file, format_bytes(bytes) + ", larger than the limit of " + format_bytes(max_bytes));
  }
  std::string text(bytes, '\0');
  in.read(text.data(), static_cast<std::streamsize>(bytes));
  text.resize(static_cast<std::size_t>(in.gcount()));
  return text;
}

Json parse_json(const Path& file, std::string_view text, const std::string& where) {
  const auto bound_depth = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxJsonDepth) refuse(file, where + "nested too deep");
    return true;
  };
  try {
    return sluice::parse_json(text, bound_depth);
  } catch (const Json::parse_error& error) {
    refuse(file, where + "not JSON at byte " + std::to_string(error.byte));
  } catch (const Json::exception&) {
    refuse(file, where + "a number out of range");
  }
}

const Json* find(const Json& object, const char* key) {
  const auto entry = object.find(key);
  return entry == object.end() || entry->is_null() ? nullptr : &*entry;
}

std::optional<std::uint64_t> count_of(const Path& file, const Json& object, const char* key) {
  const Json* value = find(object, key);
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned()) return value->get<std::uint64_t>();
  const double number = value->is_number() ? value->get<double>() : -1.0;
  if (!(number >= 0.0 && number < 0x1p63)) {
    refuse(file, std::string("'") + key + "' must be a count, 0 or more");
  }
  return static_cast<std::uint64_t>(number);
}

double number_of(const Path& file, const Json& object, const char* key) {
  const Json* value = find(object, key);
  if (value == nullptr) return std::numeric_limits<double>::quiet_NaN();
  if (!value->is_number()) refuse(file, std::string("'") + key + "' must be a number");
  return value->get<double>();
}

std::string text_of(const Path& file, const Json& object, const char* key) {
  const Json* value = find(object, key);
  if (value == nullptr) return {};
  if (!value->is_string()) refuse(file, std::string("'") + key + "' must be a string");
  return value->get<std::string>();
}

bool flag_of(const Path& file, const Json& object, const char* key) {
  const Json* value = find(object, key);
  if (value == nullptr) return false;
  if (!value->is_boolean()) refuse(file, std::string("'") + key + "' must be true or false");
  return value->get<bool>();
}

const Json& object_of(const Path& file, const Json& object, const char* key) {
  static const Json kEmpty = Json::object();
  const Json* value = find(object, key);
  if (value == nullptr) return kEmpty;
  if (!value->is_object()) refuse(file, std::string("'") + key + "' must be an object");
  return *value;
}

}  // namespace sluice::report
