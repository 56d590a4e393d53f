#include "tools/replay/lifetime_csv.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <span>
#include <sstream>
#include <string_view>

#include "base/error.hpp"
#include "base/open_failure.hpp"
#include "base/posix_file.hpp"
#include "base/units.hpp"

namespace sluice::replay {
namespace {

constexpr std::uint64_t kMaxFileBytes = 64 * kMiB;
constexpr std::size_t kMaxBuffers = 100'000;  // packing takes quadratic time
// The sum of all sizes stays below this, so that packing can add sizes without overflow.
constexpr std::uint64_t kMaxTotalBytes = (std::uint64_t{1} << 62) - 1;
constexpr std::array<std::string_view, 4> kColumns{"id", "lower", "upper", "size"};

std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> fields;
  for (;;) {
    const std::size_t comma = line.find(',');
    std::string_view field = line.substr(0, comma);
    while (!field.empty() && field.front() == ' ') field.remove_prefix(1);
    while (!field.empty() && (field.back() == ' ' || field.back() == '\r')) field.remove_suffix(1);
    fields.push_back(field);
    if (comma == std::string_view::npos) return fields;
    line.remove_prefix(comma + 1);
  }
}

std::optional<std::uint64_t> parse_number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string printable(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c < ' ' || c > '~') c = '?';
  }
  return result;
}

class Reader {
 public:
  explicit Reader(std::string source) : source_(std::move(source)) {}

  // The position of each of kColumns.
  void read_header(std::string_view line) {
    const std::vector<std::string_view> names = split(line);
    for (std::size_t c = 0; c < kColumns.size(); ++c) {
      const auto found = std::find(names.begin(), names.end(), kColumns[c]);
      if (found == names.end() || names.size() != kColumns.size()) {
        refuse("the first line must be exactly the columns id,lower,upper,size (upper: exclusive)");
      }
      places_[c] = static_cast<std::size_t>(found - names.begin());
    }
  }

  packing::Lifetime read_buffer(std::string_view line) {
    const std::vector<std::string_view> fields = split(line);
    if (fields.size() != kColumns.size()) {
      refuse("must have " + std::to_string(kColumns.size()) + " fields, not " +
             std::to_string(fields.size()));
    }
    const auto number = [&](std::size_t column) {
      const std::string_view field = fields[places_[column]];
      const auto value = parse_number(field);
      if (!value) {
        refuse(std::string(kColumns[column]) + " '" + printable(field.substr(0, 40)) +
               "' must be a whole number below 2^64");
      }
      return *value;
    };
    const packing::Lifetime lifetime{number(1), number(2), number(3)};
    if (lifetime.lower >= lifetime.upper) refuse("upper must be above lower");
    if (lifetime.bytes == 0) refuse("size must be above 0");
    if (lifetime.bytes > kMaxTotalBytes - total_bytes_)
      refuse("all sizes must be below 2^62 in sum");
    total_bytes_ += lifetime.bytes;
    return lifetime;
  }

  [[noreturn]] void refuse(const std::string& reason) const {
    throw InputError("'" + source_ + "' line " + std::to_string(line_) + ": " + reason);
  }
  void next_line() { ++line_; }

 private:
  std::string source_;
  std::size_t line_ = 0;
  std::array<std::size_t, kColumns.size()> places_{};
  std::uint64_t total_bytes_ = 0;
};

}  // namespace

std::vector<packing::Lifetime> parse_lifetime_csv(const std::string& text,
                                                  const std::string& source) {
  Reader reader(source);
  std::vector<packing::Lifetime> lifetimes;
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  std::istringstream lines(text.starts_with(kByteOrderMark) ? text.substr(kByteOrderMark.size())
                                                            : text);
  bool has_header = false;
  for (std::string line; std::getline(lines, line);) {
    reader.next_line();
    if (line.find_first_not_of(" \r") == std::string::npos) continue;
    if (lifetimes.size() == kMaxBuffers) {
      throw InputError("'" + source + "' has more than " + std::to_string(kMaxBuffers) +
                       " buffers, the most that can be packed");
    }
    if (has_header) {
      lifetimes.push_back(reader.read_buffer(line));
    } else {
      reader.read_header(line);
      has_header = true;
    }
  }
  if (lifetimes.empty()) throw InputError("'" + source + "' names no buffer");
  return lifetimes;
}

std::vector<packing::Lifetime> read_lifetime_csv(const std::string& path) {
  std::string text(kMaxFileBytes + 1, '\0');
  try {
    const PosixFile file = PosixFile::open_read(path);
    text.resize(file.read_some(0, std::as_writable_bytes(std::span(text))));
  } catch (const IoError& error) {
    throw InputError("'" + path + "' cannot be read (" + open_failure(error) + ")");
  }
  if (text.size() > kMaxFileBytes) throw InputError("'" + path + "' is above 64 MiB");
  return parse_lifetime_csv(text, path);
}

}  // namespace sluice::replay
