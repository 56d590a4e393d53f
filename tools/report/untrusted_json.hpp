// Reads JSON from files that are not trusted. Each function throws InputError, with the file's
// name, for a value that is malformed or out of range.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace sluice::report {

[[noreturn]] void refuse(const std::filesystem::path& file, const std::string& reason);

// Reads a whole regular file of at most max_bytes. A FIFO, on which it would block, is refused.
std::string read_file(const std::filesystem::path& file, std::uint64_t max_bytes);

// Arrays and objects are at most 16 deep. `where` stands before the reason in a message.
nlohmann::json parse_json(const std::filesystem::path& file, std::string_view text,
                          const std::string& where);

// The value of a key, or null if it is absent or JSON's null.
const nlohmann::json* find(const nlohmann::json& object, const char* key);

// A byte count. Whole numbers may be written as 1.5e9.
std::optional<std::uint64_t> count_of(const std::filesystem::path& file,
                                      const nlohmann::json& object, const char* key);
// NaN if the key is absent or null. JSON has no NaN, so the engine writes a NaN as null.
double number_of(const std::filesystem::path& file, const nlohmann::json& object, const char* key);
// Empty if the key is absent or null.
std::string text_of(const std::filesystem::path& file, const nlohmann::json& object,
                    const char* key);
// False if the key is absent or null.
bool flag_of(const std::filesystem::path& file, const nlohmann::json& object, const char* key);
// An empty object if the key is absent or null.
const nlohmann::json& object_of(const std::filesystem::path& file, const nlohmann::json& object,
                                const char* key);

}  // namespace sluice::report
