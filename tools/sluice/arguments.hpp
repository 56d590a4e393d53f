// Checks and conversions of arguments that several commands share.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace sluice::cli {

// A check of an option's text for CLI::Option::check: an empty string, or the sentence's end that
// follows the option's name. (CLI11's own ranges accept "nan" and print bounds of 309 digits.)
using OptionCheck = std::function<std::string(const std::string&)>;
OptionCheck whole_number(std::int64_t least, std::int64_t most);
// A finite number of seconds, bounds included.
OptionCheck seconds_between(double least, double most);

// The bytes of an option such as "1GiB", if it was given. InputError names the option.
std::optional<std::uint64_t> bytes_argument(const std::string& option,
                                            const std::optional<std::string>& text);

// Writes the whole file; InputError names the option and the path where that fails.
void write_output(const std::string& option, const std::string& path, const std::string& text);
// Writes to a regular file, which only its owner may read afterwards (mode 0600).
void write_private(const std::string& option, const std::string& path, const std::string& text);

// Relative paths of the configuration start at the working directory. InputError where it is gone.
void check_working_directory();

}  // namespace sluice::cli
