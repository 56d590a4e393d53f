// The split master (docs/design/optimizers.md): an fp32 number as a bf16 weight, rounded to nearest
// with ties away from zero, and a remainder, the signed 16-bit difference of the bits.
#pragma once

#include <bit>
#include <cstdint>

#include "base/dtype.hpp"

namespace sluice::kernels {

struct SplitMaster {
  bf16 weight;
  std::int16_t remainder = 0;
};

// The difference always fits: it is at least -2^15 (a tie, rounded away) and below 2^15, also for a
// finite number that rounds to infinity. The remainder of a NaN is its lower half, without meaning.
constexpr SplitMaster split_master(float master) {
  return {bf16_weight_from_float(master),
          static_cast<std::int16_t>(std::bit_cast<std::uint32_t>(master) & 0xffffu)};
}

// join_master(split_master(x)) is x to the bit, except that a NaN may become another NaN.
constexpr float join_master(SplitMaster split) {
  const std::uint32_t upper = static_cast<std::uint32_t>(split.weight.bits) << 16;
  const auto difference = static_cast<std::uint32_t>(static_cast<std::int32_t>(split.remainder));
  return std::bit_cast<float>(upper + difference);
}

}  // namespace sluice::kernels
