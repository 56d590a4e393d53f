#include "base/run_id.hpp"

#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/error.hpp"

namespace sluice {
namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";
constexpr std::size_t kHexDigitsPerWord = 16;

void append_hex(std::string& text, std::uint64_t word) {
  for (int shift = 60; shift >= 0; shift -= 4) text += kHexDigits[(word >> shift) & 15];
}

std::uint64_t word_of(std::string_view hex) {
  std::uint64_t word = 0;
  for (const char digit : hex) word = (word << 4) | kHexDigits.find(digit);
  return word;
}

}  // namespace

std::string RunId::hex() const {
  std::string text;
  append_hex(text, high);
  append_hex(text, low);
  return text;
}

RunId make_run_id() {
  std::array<std::uint64_t, 2> words{};
  // Up to 256 bytes arrive whole or not at all; a signal may interrupt the call before.
  ssize_t got = 0;
  do {
    got = ::getrandom(words.data(), sizeof words, 0);
  } while (got < 0 && errno == EINTR);
  if (got != static_cast<ssize_t>(sizeof words)) {
    throw IoError("getrandom", "the kernel's random numbers", 0, sizeof words, got < 0 ? errno : 0);
  }
  return {words[0], words[1]};
}

std::optional<RunId> parse_run_id(std::string_view hex) {
  if (hex.size() != 2 * kHexDigitsPerWord) return std::nullopt;
  if (hex.find_first_not_of(kHexDigits) != std::string_view::npos) return std::nullopt;
  return RunId{word_of(hex.substr(0, kHexDigitsPerWord)), word_of(hex.substr(kHexDigitsPerWord))};
}

}  // namespace sluice
