// Stochastic rounding of fp32 moments to bf16. A number between two bf16 neighbours goes to one of
// them at random, so that the mean is right and small changes of a moment are not lost.
//
// The noise of an element is a function of (seed, step, key, moment) alone; the key is the
// element's index in the whole model. It is the same for every instruction set, thread count, way
// of cutting, and rank that has the element (kernels/key_runs.hpp). One Philox4x32 block provides
// 16 bits for each of eight elements. Each 128 keys (aligned) share 16 blocks. Keys k and k + 1 (k
// even) use block 16 * (k / 128) + k % 32 / 2, word k / 32 % 4, so the words of 16 adjacent blocks
// are the noise of 32 elements in order. For moment1 the even key takes the lower half of the word
// and the odd key the upper half; for moment2 it is the reverse. The two moments of one element,
// which meet in its update, have independent noise. Those of neighbours share bits, which no update
// ever combines. Sharing halves the cost of the noise, which limits the update where memory is
// fast.
//
// Seven rounds are the fewest that pass BigCrush with a margin (Salmon et al. 2011, table 2: 7
// pass, 6 are not recommended, and ten are the default for unknown uses).
#pragma once

#include <bit>
#include <cstdint>

#include "base/dtype.hpp"
#include "base/rng.hpp"

namespace sluice::kernels {

inline constexpr int kRoundingNoiseRounds = 7;
inline constexpr std::uint64_t kRoundingNoiseKeys = 128;  // keys that share 16 blocks

// moment: 1 or 2.
constexpr std::uint16_t rounding_noise(std::uint64_t seed, std::int64_t step, std::uint64_t key,
                                       int moment) {
  const PhiloxBlock block = philox4x32(seed, key / kRoundingNoiseKeys * 16 + key % 32 / 2,
                                       static_cast<std::uint64_t>(step), kRoundingNoiseRounds);
  const std::uint32_t word = block[key / 32 % 4];
  const bool lower = (key % 2 == 0) == (moment == 1);
  return static_cast<std::uint16_t>(lower ? word : word >> 16);
}

// Returns the upper half of value + noise, the 16 bits of noise in the last places. Infinity and
// NaN stay (NaN quiet). From the largest finite bf16 on, numbers round to the nearest, so that
// noise alone makes no infinity.
constexpr bf16 bf16_stochastic(float value, std::uint16_t noise) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return bf16_from_float(value);
  return {static_cast<std::uint16_t>(
      (bits + (magnitude >= 0x7f7f0000u ? 0x8000u : std::uint32_t{noise})) >> 16)};
}

}  // namespace sluice::kernels
