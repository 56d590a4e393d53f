// Byte and time units: constants, parsing of configuration values, formatting for people.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kMiB = 1024 * kKiB;
inline constexpr std::uint64_t kGiB = 1024 * kMiB;

// Every tensor starts at a multiple of this (cuBLASLt's fastest kernels want it; so do AVX-512
// loads).
inline constexpr std::uint64_t kTensorAlignmentBytes = 256;
// Pages of device virtual memory: CUDA's minimum granularity, obeyed by the host device too.
inline constexpr std::uint64_t kPageBytes = 2 * kMiB;

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr std::uint64_t ceil_div(std::uint64_t value, std::uint64_t divisor) {
  return (value + divisor - 1) / divisor;
}

// Parses "64MiB", "1.5GiB", "2GB", "4096", "512B" (KiB/MiB/GiB/TiB binary; KB/MB/GB/TB decimal).
// Returns nothing when the text is no byte count, is negative, or passes 2^63.
std::optional<std::uint64_t> parse_bytes(std::string_view text);

// "64MiB" where the value is a whole number of a binary unit that parse_bytes reads back exactly;
// plain digits otherwise. Round-trips: parse_bytes(format_bytes_exact(v)) == v.
std::string format_bytes_exact(std::uint64_t bytes);

// For people: three significant digits, "1.46 GiB".
std::string format_bytes(std::uint64_t bytes);
// For people: "1h02m", "3m20s", "12.5 s", "3.10 ms".
std::string format_seconds(double seconds);

}  // namespace sluice
