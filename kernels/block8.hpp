// 8-bit optimizer moments (DType::kBlock8): an fp32 scale for each block of 128 elements, and codes
// that are fine near the scale and reach far below it.
//
// After Dettmers et al. 2022 ("8-bit optimizers via block-wise quantization"): blocks are scaled by
// their largest magnitude, and a code's leading bits say the power (dynamic exponent), the others
// where between two powers the number lies (linear fraction). Here powers are of two, which makes
// both directions arithmetic, and the ends of the steps are the values, so that 1 is one of them:
//
//   F(t) = base^(n - N) * ((base - 1) * t / 2^n - (base - 2)),   n = floor(log2 t)
//
// is continuous, rises from base^(1 - N) at t = 2 to 1 at t = 2^N, and is linear between powers of
// two. Code c != 0 stands for F(|c| + 1) * sign(c) * scale, code 0 for 0.
//   moment1  signed codes -127..127, base 8, N = 7: from 2^-18 to 1
//   moment2  codes 0..255, base 16, N = 8: from 2^-28 to 1. No number but 0 becomes code 0 (what is
//            smaller becomes 2^-28): a second moment that vanished beside a first one that did not
//            would make a step of m / eps.
// Over 300 simulated Adam steps (5,120 elements, scales spread by e^0, e^1 and e^2) the steps'
// error was 0.94, 1.0 and 1.0 of that of the paper's decimal maps. Second moments of base 8: 1.06
// and 1.2 of it for the wide spreads.
//
// Memory: each 4,096 elements are 32 fp32 scales and then 4,096 codes (base/dtype.hpp). All bytes 0
// are zeros. A block's numbers belong to one tensor; what lies behind a tensor's end is 0.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"

namespace sluice::kernels {

enum class Block8Map : std::uint8_t { kMoment1, kMoment2 };

// A code's number at scale 1. code: the byte as stored (moment1: two's complement).
float block8_value(Block8Map map, std::uint8_t code);

// 128 numbers to codes; returns the scale. The code is the nearest to x / scale (computed as
// x * (1 / scale) in fp32; where two are as near, either). Scales are at least 2^-90 unless all is
// zero. moment2: negative numbers count as 0. A block with an infinity or NaN gets the scale NaN:
// all of its numbers but zeros come back as NaN.
float block8_encode(Block8Map map, const float* values, std::uint8_t* codes);
void block8_decode(Block8Map map, float scale, const std::uint8_t* codes, float* values);

// Where the scale and the codes of block `block` are, in elements counted from `state`.
struct Block8Place {
  std::uint64_t scale_bytes = 0, code_bytes = 0;
};
constexpr Block8Place block8_place(std::uint64_t block) {
  constexpr std::uint64_t kBlocks = kBlock8GroupElems / kBlock8Elems;
  const std::uint64_t group = block / kBlocks * kBlock8GroupBytes;
  return {group + block % kBlocks * sizeof(float),
          group + kBlocks * sizeof(float) + block % kBlocks * kBlock8Elems};
}

// Whole states. elems: a multiple of 4,096.
void block8_encode_state(Block8Map map, const float* values, std::uint64_t elems, void* state);
void block8_decode_state(Block8Map map, const void* state, std::uint64_t elems, float* values);

// Constants that the scalar and the vector code share. Numbers are scaled by 2^scale_log2 so that
// exponents of the groups of F become whole multiples.
inline constexpr float kBlock8LeastScale = 0x1p-90f;
// moment1: y = |x| / scale * 2^21, in [8, 2^21] after the clamp; n = (exponent of y) / 3.
inline constexpr float kMoment1Stretch = 0x1p21f;
inline constexpr float kMoment1Least = 8.0f;  // F(2)
inline constexpr float kMoment1Zero = 4.0f;   // F(2) / 2: at or below it, the nearest is 0
// moment2: y = x / scale * 2^33, in [32, 2^33]; bits 25 and up are n + 32.
inline constexpr float kMoment2Stretch = 0x1p33f;
inline constexpr float kMoment2Least = 32.0f;

}  // namespace sluice::kernels
