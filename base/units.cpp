#include "base/units.hpp"

#include <array>
#include <cmath>
#include <cstdio>

namespace sluice {

namespace {

struct Suffix {
  std::string_view text;
  std::uint64_t bytes;
};

constexpr std::uint64_t kTiB = 1024 * kGiB;
constexpr std::array<Suffix, 10> kSuffixes{{{"", 1},
                                            {"B", 1},
                                            {"KiB", kKiB},
                                            {"MiB", kMiB},
                                            {"GiB", kGiB},
                                            {"TiB", kTiB},
                                            {"KB", 1'000},
                                            {"MB", 1'000'000},
                                            {"GB", 1'000'000'000},
                                            {"TB", 1'000'000'000'000}}};
constexpr std::array<Suffix, 5> kBinaryUnits{
    {{"TiB", kTiB}, {"GiB", kGiB}, {"MiB", kMiB}, {"KiB", kKiB}, {"B", 1}}};

constexpr std::uint64_t kLargestBytes = std::uint64_t{1} << 63;
// 10^18 < 2^63: a fraction of at most this many digits is exact in 64 bits.
constexpr std::size_t kMaxFractionDigits = 18;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Removes the leading digits from `text` and returns their value. Returns nothing if there are none
// or the value is above 2^63.
std::optional<std::uint64_t> take_digits(std::string_view& text) {
  std::uint64_t value = 0;
  std::size_t count = 0;
  for (; count < text.size() && is_digit(text[count]); ++count) {
    const auto digit = static_cast<std::uint64_t>(text[count] - '0');
    if (value > (kLargestBytes - digit) / 10) return std::nullopt;
    value = value * 10 + digit;
  }
  if (count == 0) return std::nullopt;
  text.remove_prefix(count);
  return value;
}

std::string format(const char* pattern, double value, std::string_view suffix) {
  std::array<char, 64> text{};
  const int length = std::snprintf(text.data(), text.size(), pattern, value);
  std::string result(text.data(), length < 0 ? 0 : static_cast<std::size_t>(length));
  return result.append(suffix);
}

// Formats a value in [0, 1024) with three significant digits.
std::string three_digits(double value, std::string_view suffix) {
  return format(value < 9.995 ? "%.2f" : (value < 99.95 ? "%.1f" : "%.0f"), value, suffix);
}

std::string two_digit_number(std::uint64_t value) {
  std::string text = std::to_string(value);
  return text.size() < 2 ? std::string(1, '0').append(text) : text;
}

}  // namespace

std::optional<std::uint64_t> parse_bytes(std::string_view text) {
  const auto whole = take_digits(text);
  if (!whole) return std::nullopt;
  std::uint64_t fraction = 0;
  std::uint64_t fraction_scale = 1;
  bool has_fraction = false;
  if (!text.empty() && text.front() == '.') {
    text.remove_prefix(1);
    const std::size_t before = text.size();
    const auto digits = take_digits(text);
    const std::size_t count = before - text.size();
    if (!digits || count > kMaxFractionDigits) return std::nullopt;
    has_fraction = true;
    fraction = *digits;
    for (std::size_t i = 0; i < count; ++i) fraction_scale *= 10;
  }
  if (!text.empty() && text.front() == ' ') {
    text.remove_prefix(1);
    if (text.empty()) return std::nullopt;
  }
  for (const Suffix& suffix : kSuffixes) {
    if (text != suffix.text) continue;
    if (has_fraction && suffix.bytes == 1) return std::nullopt;  // a fraction of a byte
    const auto product = static_cast<unsigned __int128>(*whole) * suffix.bytes +
                         static_cast<unsigned __int128>(fraction) * suffix.bytes / fraction_scale;
    if (product > kLargestBytes) return std::nullopt;
    return static_cast<std::uint64_t>(product);
  }
  return std::nullopt;
}

std::string format_bytes_exact(std::uint64_t bytes) {
  for (const Suffix& unit : kBinaryUnits) {
    if (bytes != 0 && bytes % unit.bytes == 0) {
      return std::to_string(bytes / unit.bytes).append(unit.text);
    }
  }
  return "0";
}

std::string format_bytes(std::uint64_t bytes) {
  if (bytes < kKiB) return std::to_string(bytes) + " B";
  for (const Suffix& unit : kBinaryUnits) {
    const double value = static_cast<double>(bytes) / static_cast<double>(unit.bytes);
    // 1023.5 KiB and more would print as 1024 KiB; the next unit prints 1.00 MiB.
    if (value >= 1.0 || value * 1024.0 >= 1023.5) {
      return three_digits(value, std::string(1, ' ').append(unit.text));
    }
  }
  return std::to_string(bytes) + " B";
}

std::string format_seconds(double seconds) {
  if (std::isnan(seconds)) return "unknown";
  if (seconds < 0) return std::string(1, '-').append(format_seconds(-seconds));
  if (seconds >= 9e15) return "forever";  // the integer arithmetic below would overflow
  if (seconds < 0.9995e-6) return three_digits(seconds * 1e9, " ns");
  if (seconds < 0.9995e-3) return three_digits(seconds * 1e6, " us");
  if (seconds < 0.9995) return three_digits(seconds * 1e3, " ms");
  if (seconds < 59.95) return three_digits(seconds, " s");
  const auto whole = static_cast<std::uint64_t>(std::llround(seconds));
  if (whole < 3600) return std::to_string(whole / 60) + "m" + two_digit_number(whole % 60) + "s";
  const std::uint64_t minutes = (whole + 30) / 60;
  return std::to_string(minutes / 60) + "h" + two_digit_number(minutes % 60) + "m";
}

}  // namespace sluice
