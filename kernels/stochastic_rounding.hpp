// Stochastic rounding of fp32 moments to bf16: a number between two bf16 neighbours goes to either
// with the probability that makes the mean right, so that small changes of a moment are not lost.
//
// The noise of an element is a function of (seed, step, key, moment) alone, key being the element's
// number in the model: the same for every instruction set, thread count and way of cutting. One
// Philox4x32 block has 16 bits for each of eight elements: of 128 keys (aligned), which share 16
// blocks, keys k and k + 1 (k even) take block 16 * (k / 128) + k % 32 / 2, word k / 32 % 4. So the
// words of 16 blocks side by side are the noise of 32 elements in order. For moment1 the even key
// takes the word's lower half and the odd key the upper one; for moment2 it is the other way round.
// Within an element, where the two moments meet, their noises are independent; between the two
// neighbours they are the same bits, which no update ever sees together. That halves what the noise
// costs, which bounds the update where memory is fast.
//
// Seven rounds: the fewest that pass BigCrush with a margin (Salmon et al. 2011, table 2: 7 pass,
// 6 are not recommended; ten are the default for unknown uses).
#pragma once

#include <bit>
#include <cstdint>

#include "base/dtype.hpp"
#include "base/rng.hpp"

namespace sluice::kernels {

inline constexpr int kRoundingNoiseRounds = 7;
inline constexpr std::uint64_t kRoundingNoiseKeys = 128;  // that share 16 blocks

// moment: 1 or 2.
constexpr std::uint16_t rounding_noise(std::uint64_t seed, std::int64_t step, std::uint64_t key,
                                       int moment) {
  const PhiloxBlock block = philox4x32(seed, key / kRoundingNoiseKeys * 16 + key % 32 / 2,
                                       static_cast<std::uint64_t>(step), kRoundingNoiseRounds);
  const std::uint32_t word = block[key / 32 % 4];
  const bool lower = (key % 2 == 0) == (moment == 1);
  return static_cast<std::uint16_t>(lower ? word : word >> 16);
}

// The upper half of value + noise (16 bits) in the last places. Infinity and NaN stay (NaN quiet);
// from the largest finite bf16 on numbers go to the nearest, so that noise alone makes no infinity.
constexpr bf16 bf16_stochastic(float value, std::uint16_t noise) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return bf16_from_float(value);
  return {static_cast<std::uint16_t>(
      (bits + (magnitude >= 0x7f7f0000u ? 0x8000u : std::uint32_t{noise})) >> 16)};
}

}  // namespace sluice::kernels
