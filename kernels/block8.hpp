// 8-bit optimizer moments (DType::kBlock8): an fp32 scale for each block of 128 elements, and codes
// that are dense near the scale and reach far below it.
//
// The format follows Dettmers et al. 2022 ("8-bit optimizers via block-wise quantization"). A block
// is scaled by its largest magnitude. The leading bits of a code select a power (dynamic exponent),
// and the other bits a point between two powers (linear fraction). Our powers are powers of two, so
// both directions are plain arithmetic. The end of each step is a value, so 1 is one of them:
//
//   F(t) = base^(n - N) * ((base - 1) * t / 2^n - (base - 2)),   n = floor(log2 t)
//
// F is continuous, rises from base^(1 - N) at t = 2 to 1 at t = 2^N, and is linear between powers
// of two. Code c != 0 stands for F(|c| + 1) * sign(c) * scale, and code 0 for 0.
//   moment1  signed codes -127..127, base 8, N = 7: from 2^-18 to 1
//   moment2  codes 0..255, base 16, N = 8: from 2^-28 to 1. Only 0 becomes code 0; smaller numbers
//            become 2^-28. A second moment of 0 with a first moment that is not 0 would make a
//            step of m / eps.
// In 300 simulated Adam steps (5,120 elements, scales spread by e^0, e^1 and e^2) the error of a
// step was 0.94, 1.0 and 1.0 times that of the paper's decimal maps. Second moments of base 8 gave
// 1.06 and 1.2 times that error for the two wide spreads.
//
// Memory: each 4,096 elements are 32 fp32 scales followed by 4,096 codes (base/dtype.hpp). Zero
// bytes are zeros. A block belongs to one tensor; elements beyond the tensor's end are 0.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"

namespace sluice::kernels {

enum class Block8Map : std::uint8_t { kMoment1, kMoment2 };

// Returns the value of a code at scale 1. code: the stored byte (moment1: two's complement).
float block8_value(Block8Map map, std::uint8_t code);

// Encodes 128 numbers and returns their scale. The code is the nearest to x / scale, computed as
// x * (1 / scale) in fp32; of two equally near codes, either. Scales are at least 2^-90 unless all
// numbers are zero. moment2 treats negative numbers as 0. A block with an infinity or NaN gets the
// scale NaN, and all of its numbers except zeros decode to NaN.
float block8_encode(Block8Map map, const float* values, std::uint8_t* codes);
void block8_decode(Block8Map map, float scale, const std::uint8_t* codes, float* values);

// Byte offsets of a block's scale and codes within a state.
struct Block8Place {
  std::uint64_t scale_bytes = 0, code_bytes = 0;
};
constexpr Block8Place block8_place(std::uint64_t block) {
  constexpr std::uint64_t kBlocks = kBlock8GroupElems / kBlock8Elems;
  const std::uint64_t group = block / kBlocks * kBlock8GroupBytes;
  return {group + block % kBlocks * sizeof(float),
          group + kBlocks * sizeof(float) + block % kBlocks * kBlock8Elems};
}

// Encode and decode whole states. elems: a multiple of 4,096.
void block8_encode_state(Block8Map map, const float* values, std::uint64_t elems, void* state);
void block8_decode_state(Block8Map map, const void* state, std::uint64_t elems, float* values);

// Constants shared by the scalar and the vector code. Numbers are multiplied by 2^scale_log2, which
// makes the exponents of F's groups whole multiples.
inline constexpr float kBlock8LeastScale = 0x1p-90f;
// moment1: y = |x| / scale * 2^21, in [8, 2^21] after the clamp; n = (exponent of y) / 3.
inline constexpr float kMoment1Stretch = 0x1p21f;
inline constexpr float kMoment1Least = 8.0f;  // F(2)
inline constexpr float kMoment1Zero = 4.0f;   // F(2) / 2: up to here, 0 is the nearest
// moment2: y = x / scale * 2^33, in [32, 2^33]; bits 25 and up are n + 32.
inline constexpr float kMoment2Stretch = 0x1p33f;
inline constexpr float kMoment2Least = 32.0f;

}  // namespace sluice::kernels
