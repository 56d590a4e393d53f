// What tells one run from all others, on this machine and elsewhere: 128 random bits, drawn when it
// starts. It names files and seeds checksums; no number that a run computes depends on it.
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

// From the kernel (getrandom(2)). IoError where it has no random bits to give.
RunId make_run_id();
// What hex() wrote; none for any other text.
std::optional<RunId> parse_run_id(std::string_view hex);

}  // namespace sluice
