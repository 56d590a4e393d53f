#include "base/json_text.hpp"

namespace sluice {

using nlohmann::json;
using nlohmann::ordered_json;

json parse_json(std::string_view text, const json::parser_callback_t& check) {
  return json::parse(text, check);
}

ordered_json parse_ordered_json(std::string_view text) {
  return ordered_json::parse(text);
}

json try_parse_json(std::string_view text) {
  return json::parse(text, nullptr, /*allow_exceptions=*/false);
}

std::string json_text(const json& value, int indent) {
  return value.dump(indent);
}
std::string json_text(const ordered_json& value, int indent) {
  return value.dump(indent);
}

std::string lenient_json_text(const json& value, int indent) {
  return value.dump(indent, ' ', false, json::error_handler_t::replace);
}
std::string lenient_json_text(const ordered_json& value, int indent) {
  return value.dump(indent, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace sluice
