#include "tools/sluice/arguments.hpp"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>
#include <system_error>

#include "base/error.hpp"
#include "base/posix_file.hpp"
#include "base/units.hpp"

namespace sluice::cli {
namespace {

template <class Number>
std::optional<Number> parse_number(const std::string& text) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

}  // namespace

OptionCheck whole_number(std::int64_t least, std::int64_t most) {
  return [least, most](const std::string& text) -> std::string {
    const auto value = parse_number<std::int64_t>(text);
    if (value && *value >= least && *value <= most) return "";
    return "must be a whole number from " + std::to_string(least) + " to " + std::to_string(most) +
           "; got " + shown(text);
  };
}

OptionCheck seconds_between(double least, double most) {
  return [least, most](const std::string& text) -> std::string {
    const auto value = parse_number<double>(text);
    // Not-a-number fails both comparisons.
    if (value && *value >= least && *value <= most) return "";
    std::ostringstream sentence;
    sentence << "must be a number of seconds from " << least << " to " << most << "; got "
             << shown(text);
    return sentence.str();
  };
}

std::optional<std::uint64_t> bytes_argument(const std::string& option,
                                            const std::optional<std::string>& text) {
  if (!text) return std::nullopt;
  const auto bytes = parse_bytes(*text);
  if (!bytes || *bytes == 0) {
    throw InputError(option + " '" + *text + "' must be a byte count above 0, such as 1GiB");
  }
  return bytes;
}

void write_output(const std::string& option, const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::trunc | std::ios::binary);
  file << text;
  if (file.flush()) return;
  const std::string why = errno == 0 ? "" : std::string(": ") + std::strerror(errno);
  throw InputError(option + ": '" + path + "' cannot be written" + why);
}

void write_private(const std::string& option, const std::string& path, const std::string& text) {
  try {
    PosixFile::create(path).write_all(0, std::as_bytes(std::span(text.data(), text.size())));
  } catch (const IoError& error) {
    throw InputError(option + ": '" + path +
                     "' cannot be written: " + std::strerror(error.error_number));
  }
}

void check_working_directory() {
  std::error_code error;
  static_cast<void>(std::filesystem::current_path(error));
  if (error) {
    throw InputError("the working directory cannot be used (" + error.message() +
                     "); change to a directory that exists");
  }
}

}  // namespace sluice::cli
