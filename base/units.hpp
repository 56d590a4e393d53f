// Byte and time units: constants, parsing of configuration values, formatting for messages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kMiB = 1024 * kKiB;
inline constexpr std::uint64_t kGiB = 1024 * kMiB;

// Every tensor starts at a multiple of this. cuBLASLt's fastest kernels and AVX-512 loads need it.
inline constexpr std::uint64_t kTensorAlignmentBytes = 256;
// The size of a page of device virtual memory: CUDA's minimum granularity. The host device
// uses it too.
inline constexpr std::uint64_t kPageBytes = 2 * kMiB;

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr std::uint64_t ceil_div(std::uint64_t value, std::uint64_t divisor) {
  return (value + divisor - 1) / divisor;
}

// Parses "64MiB", "1.5GiB", "2GB", "4096", "512B" (KiB/MiB/GiB/TiB binary; KB/MB/GB/TB decimal).
// Returns nothing if the text is not a byte count, is negative, or is above 2^63.
std::optional<std::uint64_t> parse_bytes(std::string_view text);

// "64MiB", "1000B" or "0": a whole number of the largest binary unit. It round-trips:
// parse_bytes(format_bytes_exact(v)) == v.
std::string format_bytes_exact(std::uint64_t bytes);

// Formats for messages, with three significant digits: "1.46 GiB".
std::string format_bytes(std::uint64_t bytes);
// Formats for messages: "1h02m", "3m20s", "12.5 s", "3.10 ms".
std::string format_seconds(double seconds);

}  // namespace sluice
