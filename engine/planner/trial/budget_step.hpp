// The sizes that refusals suggest.
#pragma once

#include <cstdint>

#include "base/units.hpp"

namespace sluice::planner {

// The budget that a refusal names for `needed_bytes`: the least that a person can read and type. A
// step is a page below 64 GiB and 1 GiB, at most 1.6% more, from there on: "452GiB", not
// "461984MiB".
constexpr std::uint64_t suggested_budget(std::uint64_t needed_bytes) {
  return round_up(needed_bytes, needed_bytes >= 64 * kGiB ? kGiB : kPageBytes);
}

}  // namespace sluice::planner
