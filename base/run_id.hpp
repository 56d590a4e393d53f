// The identity of a run, unique on all machines: 128 random bits, drawn when the run starts. It
// names files and seeds checksums; no number that a run computes depends on it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

struct RunId {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  std::string hex() const;  // 32 lower-case digits
  bool operator==(const RunId&) const = default;
};

// Draws an id from the kernel (getrandom(2)). Throws IoError if the call fails.
RunId make_run_id();
// Parses the output of hex(); returns nothing for any other text.
std::optional<RunId> parse_run_id(std::string_view hex);

}  // namespace sluice
