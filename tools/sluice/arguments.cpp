#include "tools/sluice/arguments.hpp"

#include <fstream>
#include <span>

#include "base/error.hpp"
#include "base/posix_file.hpp"
#include "base/units.hpp"

namespace sluice::cli {

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
  std::ofstream file(path, std::ios::trunc | std::ios::binary);
  file << text;
  if (!file.flush()) throw InputError(option + ": '" + path + "' cannot be written");
}

void write_private(const std::string& option, const std::string& path, const std::string& text) {
  try {
    PosixFile::create(path).write_all(0, std::as_bytes(std::span(text.data(), text.size())));
  } catch (const IoError&) {
    throw InputError(option + ": '" + path + "' cannot be written");
  }
}

}  // namespace sluice::cli
