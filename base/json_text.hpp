// JSON values from text and to text. The parser and the writer are templates that cost each source
// using them 1 to 3 s of compilation, so these functions instantiate them once for the whole house.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace sluice {

// Throws nlohmann::json::parse_error. check: called for each element; it may throw, and an element
// for which it returns false is left out. Null: none.
nlohmann::json parse_json(std::string_view text,
                          const nlohmann::json::parser_callback_t& check = nullptr);
nlohmann::ordered_json parse_ordered_json(std::string_view text);
// Returns a discarded value (is_discarded()) for a text that is not JSON.
nlohmann::json try_parse_json(std::string_view text);

// indent: spaces of each level; below 0: all on one line. Throws nlohmann::json::type_error for a
// string that is not UTF-8.
std::string json_text(const nlohmann::json& value, int indent = -1);
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);
// Writes U+FFFD in place of bytes that are not UTF-8.
std::string lenient_json_text(const nlohmann::json& value, int indent = -1);
std::string lenient_json_text(const nlohmann::ordered_json& value, int indent = -1);

}  // namespace sluice
