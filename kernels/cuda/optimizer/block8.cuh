// Device code of kernels/block8.hpp, with the same operations in the same order, hence the same
// bits. A warp handles a block of 128 elements, four per lane.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/block8.hpp"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/simt.cuh"

namespace sluice::kernels::cuda {

template <Block8Map kMap>
__device__ __forceinline__ float block8_decoded(float scale, std::uint8_t code) {
  if (code == 0) return 0.0f;
  constexpr bool kSigned = kMap == Block8Map::kMoment1;
  const int number = kSigned ? static_cast<std::int8_t>(code) : code;
  const auto t = static_cast<float>((number < 0 ? -number : number) + 1);
  const float power = __uint_as_float(__float_as_uint(t) & 0xff800000u);
  if constexpr (kSigned) {
    const float slope = __fsub_rn(__fmul_rn(t, 7 * 0x1p-21f), __fmul_rn(power, 6 * 0x1p-21f));
    const float value = __fmul_rn(slope, __fmul_rn(power, power));
    return __fmul_rn(number < 0 ? -value : value, scale);
  } else {
    const float slope = __fsub_rn(__fmul_rn(t, 15 * 0x1p-32f), __fmul_rn(power, 14 * 0x1p-32f));
    return __fmul_rn(__fmul_rn(__fmul_rn(slope, power), __fmul_rn(power, power)), scale);
  }
}

// Rounds a number of at most 255 to the nearest integer, ties to even.
__device__ __forceinline__ std::uint32_t block8_rounded(float number) {
  // The last place of 1.5 * 2^23 is 1.
  constexpr float kShift = 0x1.8p23f;
  return __float_as_uint(__fadd_rn(number, kShift)) - 0x4b400000u;
}

template <Block8Map kMap>
__device__ __forceinline__ std::uint8_t block8_coded(float value, float inverse) {
  constexpr auto kSeventh = std::bit_cast<std::uint32_t>(1.0f / 7.0f);
  constexpr auto kEightFifteenths = std::bit_cast<std::uint32_t>(8.0f / 15.0f);
  if constexpr (kMap == Block8Map::kMoment1) {
    const float y = __fmul_rn(fabsf(value), inverse);
    if (!(y > kMoment1Zero)) return 0;
    const std::uint32_t bits = __float_as_uint(fmaxf(y, kMoment1Least));
    const std::uint32_t n = ((bits >> 23) * 11 - 127 * 11) >> 5;
    const float z = __uint_as_float(bits - (3 * n << 23));
    const float t = __fmul_rn(__fadd_rn(z, 6.0f), __uint_as_float((n << 23) + kSeventh));
    const std::uint32_t code = block8_rounded(__fsub_rn(t, 1.0f));
    return static_cast<std::uint8_t>((__float_as_uint(value) >> 31) != 0 ? 0u - code : code);
  } else {
    if (!(value > 0)) return 0;
    const std::uint32_t bits = __float_as_uint(fmaxf(__fmul_rn(value, inverse), kMoment2Least));
    const float z8 = __uint_as_float((bits & 0x01ffffffu) | (124u << 23));
    const float power =
        __uint_as_float(((bits & 0xfe000000u) >> 2) + kEightFifteenths - (32u << 23));
    const float t = __fmul_rn(__fadd_rn(z8, 1.75f), power);
    return static_cast<std::uint8_t>(block8_rounded(__fsub_rn(t, 1.0f)));
  }
}

__device__ __forceinline__ std::uint32_t warp_max_bits(std::uint32_t bits) {
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    const std::uint32_t other = __shfl_xor_sync(kAllLanes, bits, distance);
    bits = other > bits ? other : bits;
  }
  return bits;
}

// Encodes the block's numbers. Returns the scale in all lanes.
template <Block8Map kMap>
__device__ __forceinline__ float block8_encode_block(const float (&values)[4],
                                                     std::uint8_t (&codes)[4]) {
  constexpr bool kSigned = kMap == Block8Map::kMoment1;
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t magnitude = __float_as_uint(values[i]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  largest = warp_max_bits(largest);
  if (largest >= 0x7f800000u) {
#pragma unroll
    for (int i = 0; i < 4; ++i) codes[i] = values[i] == 0 ? 0 : kSigned ? 127 : 255;
    return __uint_as_float(0x7fc00000u);
  }
  const float most = __uint_as_float(largest);
  const float scale = most > kBlock8LeastScale ? most : kBlock8LeastScale;
  const float inverse = __fdiv_rn(kSigned ? kMoment1Stretch : kMoment2Stretch, scale);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    codes[i] = largest == 0 ? 0 : block8_coded<kMap>(values[i], inverse);
  }
  return largest == 0 ? 0.0f : scale;
}

}  // namespace sluice::kernels::cuda
