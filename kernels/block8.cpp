// Scalar reference of the 8-bit moments (block8.hpp defines the format). Encoding inverts F by bit
// arithmetic: the exponent of the scaled number yields the group n, the mantissa the position in
// the group. The vector code (host/optimizer/block8_simd.hpp) and the CUDA code perform the same
// operations in the same order, so all produce the same bits.
#include "kernels/block8.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.hpp"

namespace sluice::kernels {
namespace {

std::uint32_t bits_of(float value) {
  return std::bit_cast<std::uint32_t>(value);
}
float from_bits(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}

// Returns t - 1 for t = F^-1(y), rounded to the nearest even integer. The bits of y are split into
// n and z in [1, base): t = 2^n * (z + base - 2) / (base - 1).
std::uint8_t moment1_code(float value, float inverse) {
  const float y = std::abs(value) * inverse;
  if (!(y > kMoment1Zero)) return 0;
  const std::uint32_t bits = bits_of(std::max(y, kMoment1Least));
  const std::uint32_t n = ((bits >> 23) * 11 - 127 * 11) >> 5;  // (exponent) / 3 below 32
  const float z = from_bits(bits - (3 * n << 23));
  const float t = (z + 6.0f) * from_bits((n << 23) + bits_of(1.0f / 7.0f));
  const auto code = static_cast<std::int32_t>(std::nearbyint(t - 1.0f));
  return static_cast<std::uint8_t>(std::signbit(value) ? -code : code);
}

// The code is found with z / 8, which has the bits of y.
std::uint8_t moment2_code(float value, float inverse) {
  if (!(value > 0)) return 0;
  const std::uint32_t bits = bits_of(std::max(value * inverse, kMoment2Least));
  const float z8 = from_bits((bits & 0x01ffffffu) | (124u << 23));
  const float power = from_bits(((bits & 0xfe000000u) >> 2) + bits_of(8.0f / 15.0f) - (32u << 23));
  const float t = (z8 + 1.75f) * power;
  return static_cast<std::uint8_t>(std::nearbyint(t - 1.0f));
}

}  // namespace

float block8_value(Block8Map map, std::uint8_t code) {
  if (code == 0) return 0;
  const bool is_signed = map == Block8Map::kMoment1;
  const int number = is_signed ? static_cast<std::int8_t>(code) : code;
  const float t = static_cast<float>(std::abs(number) + 1);
  const float power = from_bits(bits_of(t) & 0xff800000u);
  if (!is_signed) return (t * (15 * 0x1p-32f) - power * (14 * 0x1p-32f)) * power * (power * power);
  return std::copysign((t * (7 * 0x1p-21f) - power * (6 * 0x1p-21f)) * (power * power),
                       static_cast<float>(number));
}

float block8_encode(Block8Map map, const float* values, std::uint8_t* codes) {
  std::uint32_t largest = 0;
  for (std::uint64_t i = 0; i < kBlock8Elems; ++i) {
    largest = std::max(largest, bits_of(values[i]) & 0x7fffffffu);
  }
  if (largest >= 0x7f800000u) {
    for (std::uint64_t i = 0; i < kBlock8Elems; ++i) {
      codes[i] = values[i] == 0 ? 0 : map == Block8Map::kMoment1 ? 127 : 255;
    }
    return std::numeric_limits<float>::quiet_NaN();
  }
  if (largest == 0) {
    std::memset(codes, 0, kBlock8Elems);
    return 0;
  }
  const float scale = std::max(from_bits(largest), kBlock8LeastScale);
  if (map == Block8Map::kMoment1) {
    const float inverse = kMoment1Stretch / scale;
    for (std::uint64_t i = 0; i < kBlock8Elems; ++i) codes[i] = moment1_code(values[i], inverse);
  } else {
    const float inverse = kMoment2Stretch / scale;
    for (std::uint64_t i = 0; i < kBlock8Elems; ++i) codes[i] = moment2_code(values[i], inverse);
  }
  return scale;
}

void block8_decode(Block8Map map, float scale, const std::uint8_t* codes, float* values) {
  for (std::uint64_t i = 0; i < kBlock8Elems; ++i) {
    values[i] = codes[i] == 0 ? 0.0f : block8_value(map, codes[i]) * scale;
  }
}

void block8_encode_state(Block8Map map, const float* values, std::uint64_t elems, void* state) {
  SLUICE_CHECK(elems % kBlock8GroupElems == 0);
  auto* const bytes = static_cast<std::uint8_t*>(state);
  for (std::uint64_t block = 0; block < elems / kBlock8Elems; ++block) {
    const Block8Place at = block8_place(block);
    const float scale = block8_encode(map, values + block * kBlock8Elems, bytes + at.code_bytes);
    std::memcpy(bytes + at.scale_bytes, &scale, sizeof scale);
  }
}

void block8_decode_state(Block8Map map, const void* state, std::uint64_t elems, float* values) {
  SLUICE_CHECK(elems % kBlock8GroupElems == 0);
  const auto* const bytes = static_cast<const std::uint8_t*>(state);
  for (std::uint64_t block = 0; block < elems / kBlock8Elems; ++block) {
    const Block8Place at = block8_place(block);
    float scale = 0;
    std::memcpy(&scale, bytes + at.scale_bytes, sizeof scale);
    block8_decode(map, scale, bytes + at.code_bytes, values + block * kBlock8Elems);
  }
}

}  // namespace sluice::kernels
