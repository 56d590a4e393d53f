// Parts of an AllReduce: as even as possible, the first ones larger.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/schedule/schedule.hpp"

namespace sluice::schedule {

constexpr ElemRange even_part(std::uint64_t elems, std::int32_t parts, std::int32_t part) {
  const auto count = static_cast<std::uint64_t>(parts), at = static_cast<std::uint64_t>(part);
  const std::uint64_t least = elems / count, larger = elems % count;
  const std::uint64_t begin = at * least + std::min(at, larger);
  return {begin, begin + least + (at < larger ? 1 : 0)};
}

}  // namespace sluice::schedule
