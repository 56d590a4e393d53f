// Vector code of kernels/block8.hpp, with the same operations in the same order, hence the same
// bits. Included once per instruction set (see kernels/host/simd.hpp).
#if defined(SLUICE_KERNELS_HOST_OPTIMIZER_BLOCK8) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_KERNELS_HOST_OPTIMIZER_BLOCK8
#undef SLUICE_KERNELS_HOST_OPTIMIZER_BLOCK8
#else
#define SLUICE_KERNELS_HOST_OPTIMIZER_BLOCK8
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/block8.hpp"
#include "kernels/host/simd.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::host::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

template <Block8Map kMap>
HWY_INLINE void decode_block8(float scale, const std::uint8_t* codes, float* values) {
  block8_decode(kMap, scale, codes, values);
}
template <Block8Map kMap>
HWY_INLINE float encode_block8(const float* values, std::uint8_t* codes) {
  return block8_encode(kMap, values, codes);
}

#else

using Numbers = hn::RebindToSigned<WideTag>;
using Codes = hn::Rebind<std::uint8_t, WideTag>;
using SignedCodes = hn::Rebind<std::int8_t, WideTag>;

template <Block8Map kMap>
HWY_INLINE void decode_block8(float scale, const std::uint8_t* HWY_RESTRICT codes,
                              float* HWY_RESTRICT values) {
  const WideTag d;
  const Numbers i;
  constexpr bool kSigned = kMap == Block8Map::kMoment1;
  const auto slope = hn::Set(d, kSigned ? 7 * 0x1p-21f : 15 * 0x1p-32f);
  const auto offset = hn::Set(d, kSigned ? 6 * 0x1p-21f : 14 * 0x1p-32f);
  const auto exponent = hn::Set(i, static_cast<std::int32_t>(0xff800000u));
  const auto one = hn::Set(i, 1);
  for (std::uint64_t at = 0; at < kBlock8Elems; at += hn::Lanes(d)) {
    const auto bytes = hn::LoadU(Codes(), codes + at);
    hn::Vec<Numbers> number;
    if constexpr (kSigned) {
      number = hn::PromoteTo(i, hn::BitCast(SignedCodes(), bytes));
    } else {
      number = hn::PromoteTo(i, bytes);
    }
    const auto count = kSigned ? hn::Abs(number) : number;
    const auto t = hn::ConvertTo(d, hn::Add(count, one));
    const auto power = hn::BitCast(d, hn::And(hn::BitCast(i, t), exponent));
    auto value = hn::Sub(hn::Mul(t, slope), hn::Mul(power, offset));
    if constexpr (!kSigned) value = hn::Mul(value, power);
    value = hn::Mul(hn::Mul(value, hn::Mul(power, power)), hn::Set(d, scale));
    if constexpr (kSigned) value = hn::CopySignToAbs(value, hn::BitCast(d, number));
    const auto some = hn::RebindMask(d, hn::Gt(count, hn::Zero(i)));
    hn::StoreU(hn::IfThenElseZero(some, value), d, values + at);
  }
}

HWY_INLINE hn::Vec<Numbers> moment1_codes(hn::Vec<WideTag> value, hn::Vec<WideTag> inverse) {
  const WideTag d;
  const Numbers i;
  const hn::Repartition<std::uint16_t, WideTag> half;
  const auto y = hn::Mul(hn::Abs(value), inverse);
  const auto some = hn::Gt(y, hn::Set(d, kMoment1Zero));
  const auto bits = hn::BitCast(i, hn::Max(y, hn::Set(d, kMoment1Least)));
  // 16-bit products suffice: the upper halves of the lanes are zero.
  const auto times = [&](hn::Vec<Numbers> number, int factor) HWY_ATTR {
    const auto by = hn::BitCast(half, hn::Set(i, factor));
    return hn::BitCast(i, hn::Mul(hn::BitCast(half, number), by));
  };
  const auto n =
      hn::ShiftRight<5>(hn::Sub(times(hn::ShiftRight<23>(bits), 11), hn::Set(i, 127 * 11)));
  const auto z = hn::BitCast(d, hn::Sub(bits, hn::ShiftLeft<16>(times(n, 3 << 7))));
  const auto power = hn::BitCast(
      d, hn::Add(hn::ShiftLeft<23>(n), hn::Set(i, std::bit_cast<std::int32_t>(1.0f / 7.0f))));
  const auto t = hn::Mul(hn::Add(z, hn::Set(d, 6.0f)), power);
  const auto code = hn::IfThenElseZero(some, hn::Sub(t, hn::Set(d, 1.0f)));
  return hn::NearestInt(hn::CopySignToAbs(code, value));
}

HWY_INLINE hn::Vec<Numbers> moment2_codes(hn::Vec<WideTag> value, hn::Vec<WideTag> inverse) {
  const WideTag d;
  const Numbers i;
  const auto set = [&](std::uint32_t bits)
                       HWY_ATTR { return hn::Set(i, static_cast<std::int32_t>(bits)); };
  const auto y = hn::Mul(value, inverse);
  const auto some = hn::Gt(value, hn::Zero(d));
  const auto bits = hn::BitCast(i, hn::Max(y, hn::Set(d, kMoment2Least)));
  const auto z8 = hn::BitCast(d, hn::Or(hn::And(bits, set(0x01ffffffu)), set(124u << 23)));
  // The sign bit is clear, so arithmetic shifts are safe.
  const auto power =
      hn::BitCast(d, hn::Add(hn::ShiftRight<2>(hn::And(bits, set(0x7e000000u))),
                             set(std::bit_cast<std::uint32_t>(8.0f / 15.0f) - (32u << 23))));
  const auto t = hn::Mul(hn::Add(z8, hn::Set(d, 1.75f)), power);
  return hn::NearestInt(hn::IfThenElseZero(some, hn::Sub(t, hn::Set(d, 1.0f))));
}

HWY_INLINE std::uint32_t largest_magnitude(const float* values) {
  const Numbers i;
  const auto magnitude = hn::Set(i, 0x7fffffff);
  auto largest = hn::Zero(i);
  for (std::uint64_t at = 0; at < kBlock8Elems; at += hn::Lanes(i)) {
    const auto bits = hn::BitCast(i, hn::LoadU(WideTag(), values + at));
    largest = hn::Max(largest, hn::And(bits, magnitude));
  }
  return static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(i, largest)));
}

template <Block8Map kMap>
HWY_INLINE float encode_block8(const float* HWY_RESTRICT values, std::uint8_t* HWY_RESTRICT codes) {
  const WideTag d;
  const std::uint32_t largest = largest_magnitude(values);
  if (largest == 0 || largest >= 0x7f800000u) return block8_encode(kMap, values, codes);
  const float scale = std::max(std::bit_cast<float>(largest), kBlock8LeastScale);
  constexpr bool kSigned = kMap == Block8Map::kMoment1;
  const auto inverse = hn::Set(d, (kSigned ? kMoment1Stretch : kMoment2Stretch) / scale);
  for (std::uint64_t at = 0; at < kBlock8Elems; at += hn::Lanes(d)) {
    const auto value = hn::LoadU(d, values + at);
    if constexpr (kSigned) {
      const auto bytes = hn::DemoteTo(SignedCodes(), moment1_codes(value, inverse));
      hn::StoreU(hn::BitCast(Codes(), bytes), Codes(), codes + at);
    } else {
      hn::StoreU(hn::DemoteTo(Codes(), moment2_codes(value, inverse)), Codes(), codes + at);
    }
  }
  return scale;
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace sluice::kernels::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
