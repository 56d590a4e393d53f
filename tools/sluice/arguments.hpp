// What several commands read from their arguments in the same way.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace sluice::cli {

// The bytes of an option such as "1GiB", if it was given. InputError names the option.
std::optional<std::uint64_t> bytes_argument(const std::string& option,
                                            const std::optional<std::string>& text);

// Writes the whole file; InputError names the option and the path where that fails.
void write_output(const std::string& option, const std::string& path, const std::string& text);
// The same to a regular file, which only its owner may read afterwards (mode 0600).
void write_private(const std::string& option, const std::string& path, const std::string& text);

}  // namespace sluice::cli
