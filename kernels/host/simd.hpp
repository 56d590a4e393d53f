// The common part of this folder's SIMD kernels: loads and stores of fp32, bf16 and fp16, tails,
// lane sums.
//
// Highway's foreach_target includes this file once per instruction set, hence the toggle in place
// of `#pragma once`. Nothing here fuses a multiply with an add, and no result depends on the vector
// width. Vectors have at most 16 fp32 lanes.
#if defined(SLUICE_KERNELS_HOST_SIMD) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_KERNELS_HOST_SIMD
#undef SLUICE_KERNELS_HOST_SIMD
#else
#define SLUICE_KERNELS_HOST_SIMD
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "base/dtype.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::host::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The fp32 lanes of the instruction set, and one lane for tails. The code, and so the bits, are the
// same.
using WideTag = hn::CappedTag<float, 16>;
using OneTag = hn::CappedTag<float, 1>;

template <class D>
using BitsOf = hn::RebindToUnsigned<D>;
template <class D>
using HalfBitsOf = hn::Rebind<std::uint16_t, D>;

// --- bf16 <-> fp32, in integer arithmetic

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const float* from) {
  return hn::LoadU(d, from);
}

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const bf16* from) {
  const auto half = hn::LoadU(HalfBitsOf<D>(), &from->bits);
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(BitsOf<D>(), half)));
}

// The upper 16 bits of the result are the rounded number; the lower ones are garbage. A NaN becomes
// a quiet NaN, because its payload could round away or carry into the sign.
template <class D, class VBits>
HWY_INLINE VBits quiet_nan_or(D, hn::Vec<D> value, VBits rounded) {
  const BitsOf<D> bits_tag;
  const auto quiet = hn::Or(hn::BitCast(bits_tag, value), hn::Set(bits_tag, 0x400000u));
  return hn::IfThenElse(hn::RebindMask(bits_tag, hn::IsNaN(value)), quiet, rounded);
}

// bf16_from_float (nearest, ties to even) and bf16_weight_from_float (ties away), in the upper
// half.
template <class D>
HWY_INLINE hn::Vec<BitsOf<D>> round_even_bits(D d, hn::Vec<D> value) {
  const BitsOf<D> bits_tag;
  const auto bits = hn::BitCast(bits_tag, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(bits_tag, 1u));
  return quiet_nan_or(d, value, hn::Add(hn::Add(bits, hn::Set(bits_tag, 0x7fffu)), odd));
}

template <class D>
HWY_INLINE hn::Vec<BitsOf<D>> round_away_bits(D d, hn::Vec<D> value) {
  const BitsOf<D> bits_tag;
  const auto bits = hn::BitCast(bits_tag, value);
  return quiet_nan_or(d, value, hn::Add(bits, hn::Set(bits_tag, 0x8000u)));
}

template <class D>
HWY_INLINE hn::Vec<HalfBitsOf<D>> upper_half(D, hn::Vec<BitsOf<D>> bits) {
  // After the shift lanes are below 2^16, so the saturating demotion of int32 keeps them whole.
  const auto small = hn::BitCast(hn::RebindToSigned<D>(), hn::ShiftRight<16>(bits));
  return hn::DemoteTo(HalfBitsOf<D>(), small);
}
template <class D>
HWY_INLINE void store_upper_half(D d, hn::Vec<BitsOf<D>> bits, bf16* to) {
  hn::StoreU(upper_half(d, bits), HalfBitsOf<D>(), &to->bits);
}
// Stores past the caches. Precondition: aligned to a whole vector of at least 16 bytes.
template <class D>
HWY_INLINE void stream_upper_half(D d, hn::Vec<BitsOf<D>> bits, bf16* to) {
  hn::Stream(upper_half(d, bits), HalfBitsOf<D>(), &to->bits);
}

// Stores an activation or a gradient: rounded to nearest even.
template <class D>
HWY_INLINE void store(D d, hn::Vec<D> value, float* to) {
  hn::StoreU(value, d, to);
}
template <class D>
HWY_INLINE void store(D d, hn::Vec<D> value, bf16* to) {
  store_upper_half(d, round_even_bits(d, value), to);
}

// Stores a weight: rounded to nearest, ties away.
template <class D>
HWY_INLINE void store_weight(D d, hn::Vec<D> value, float* to) {
  hn::StoreU(value, d, to);
}
template <class D>
HWY_INLINE void store_weight(D d, hn::Vec<D> value, bf16* to) {
  store_upper_half(d, round_away_bits(d, value), to);
}

// --- fp16 <-> fp32

// Hardware conversions (x86 from AVX2 on: F16C) produce the bits of f16_from_float and to_float.
// Highway's own conversions for other targets truncate, so those are written out here.
#undef SLUICE_HAS_F16_CONVERSIONS
#if HWY_ARCH_X86 && HWY_TARGET < HWY_SSE4 && !defined(HWY_DISABLE_F16C)
#define SLUICE_HAS_F16_CONVERSIONS 1
#else
#define SLUICE_HAS_F16_CONVERSIONS 0
#endif

#if SLUICE_HAS_F16_CONVERSIONS

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const f16* from) {
  const auto half = hn::LoadU(HalfBitsOf<D>(), &from->bits);
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), half));
}

template <class D>
HWY_INLINE void store(D, hn::Vec<D> value, f16* to) {
  const auto half = hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), value);
  hn::StoreU(hn::BitCast(HalfBitsOf<D>(), half), HalfBitsOf<D>(), &to->bits);
}

template <class D>
HWY_INLINE hn::Vec<D> through_f16(D d, hn::Vec<D> value) {
  return hn::PromoteTo(d, hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), value));
}

#else

// to_float(f16) of the halves in the lower 16 bits of each lane.
template <class D>
HWY_INLINE hn::Vec<D> widen_f16_bits(D d, hn::Vec<BitsOf<D>> half) {
  const BitsOf<D> u;
  const hn::RebindToSigned<D> i;
  const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(u, 0x8000u)));
  const auto magnitude = hn::And(half, hn::Set(u, 0x7fffu));
  const auto wide = hn::ShiftLeft<13>(magnitude);
  const auto tiny = hn::Mul(hn::ConvertTo(d, hn::BitCast(i, magnitude)), hn::Set(d, 0x1p-24f));
  auto bits = hn::Add(wide, hn::Set(u, 112u << 23));
  const auto m = hn::BitCast(i, magnitude);
  const auto select = [&](auto mask, auto yes)
                          HWY_ATTR { bits = hn::IfThenElse(hn::RebindMask(u, mask), yes, bits); };
  select(hn::Lt(m, hn::Set(i, 0x400)), hn::BitCast(u, tiny));
  select(hn::Eq(m, hn::Set(i, 0x7c00)), hn::Set(u, 0x7f800000u));
  select(hn::Gt(m, hn::Set(i, 0x7c00)), hn::Or(wide, hn::Set(u, 0x7fc00000u)));
  return hn::BitCast(d, hn::Or(sign, bits));
}

// f16_from_float, into the lower 16 bits of each lane.
template <class D>
HWY_INLINE hn::Vec<BitsOf<D>> f16_bits(D d, hn::Vec<D> value) {
  const BitsOf<D> u;
  const hn::RebindToSigned<D> i;
  const auto all = hn::BitCast(u, value);
  const auto sign = hn::And(hn::ShiftRight<16>(all), hn::Set(u, 0x8000u));
  const auto magnitude = hn::And(all, hn::Set(u, 0x7fffffffu));
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(u, 1u));
  // Both offsets at once: 0xfff rounds, and -(112 << 23) moves the exponent.
  const auto bias = hn::Set(u, 0xfffu - (112u << 23));
  auto half = hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, bias), odd));
  // Below 2^-14 the fp32 unit rounds: the last place of a number plus 0.5 is 2^-24.
  const auto half_one = hn::Set(d, 0.5f);
  const auto tiny = hn::Sub(hn::BitCast(u, hn::Add(hn::BitCast(d, magnitude), half_one)),
                            hn::BitCast(u, half_one));
  const auto payload = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(u, 0x3ffu));
  const auto m = hn::BitCast(i, magnitude);
  const auto select = [&](auto mask, auto yes)
                          HWY_ATTR { half = hn::IfThenElse(hn::RebindMask(u, mask), yes, half); };
  select(hn::Lt(m, hn::Set(i, 0x38800000)), tiny);
  select(hn::Gt(m, hn::Set(i, 0x477fefff)), hn::Set(u, 0x7c00u));
  select(hn::Gt(m, hn::Set(i, 0x7f800000)), hn::Or(payload, hn::Set(u, 0x7e00u)));
  return hn::Or(sign, half);
}

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const f16* from) {
  return widen_f16_bits(d, hn::PromoteTo(BitsOf<D>(), hn::LoadU(HalfBitsOf<D>(), &from->bits)));
}

template <class D>
HWY_INLINE void store(D d, hn::Vec<D> value, f16* to) {
  const auto small = hn::BitCast(hn::RebindToSigned<D>(), f16_bits(d, value));
  hn::StoreU(hn::DemoteTo(HalfBitsOf<D>(), small), HalfBitsOf<D>(), &to->bits);
}

template <class D>
HWY_INLINE hn::Vec<D> through_f16(D d, hn::Vec<D> value) {
  return widen_f16_bits(d, f16_bits(d, value));
}

#endif  // SLUICE_HAS_F16_CONVERSIONS

template <class D>
HWY_INLINE void store_weight(D d, hn::Vec<D> value, f16* to) {
  store(d, value, to);
}

// --- dtypes

// A stored number: T is float, bf16 or f16, and untyped addresses are read as T.
template <class T>
struct Stored {
  using type = T;
  static const T* in(const void* data) { return static_cast<const T*>(data); }
  static T* out(void* data) { return static_cast<T*>(data); }
};

// Calls body(Stored<T>()) for an act dtype (kernels.hpp). `body` is a lambda with HWY_ATTR.
template <class Body>
HWY_INLINE void as_stored(DType dtype, const Body& body) {
  if (dtype == DType::kBF16) {
    body(Stored<bf16>());
  } else if (dtype == DType::kF16) {
    body(Stored<f16>());
  } else {
    body(Stored<float>());
  }
}

// fp32 -> T (nearest even) -> fp32.
template <class D>
HWY_INLINE hn::Vec<D> through(D, hn::Vec<D> value, Stored<float>) {
  return value;
}
template <class D>
HWY_INLINE hn::Vec<D> through(D d, hn::Vec<D> value, Stored<bf16>) {
  const auto upper = hn::And(round_even_bits(d, value), hn::Set(BitsOf<D>(), 0xffff0000u));
  return hn::BitCast(d, upper);
}
template <class D>
HWY_INLINE hn::Vec<D> through(D d, hn::Vec<D> value, Stored<f16>) {
  return through_f16(d, value);
}
// The name that the optimizers' kernels use.
template <class D>
HWY_INLINE hn::Vec<D> through_bf16(D d, hn::Vec<D> value) {
  return through(d, value, Stored<bf16>());
}

// --- loops

// Calls body(tag, i) for every i in [begin, end): whole vectors, then single lanes. `body` is a
// lambda with HWY_ATTR before its brace.
template <class Body>
HWY_INLINE void for_lanes(std::int64_t begin, std::int64_t end, const Body& body) {
  const WideTag wide;
  const auto step = static_cast<std::int64_t>(hn::Lanes(wide));
  std::int64_t i = begin;
  for (; i + step <= end; i += step) body(wide, i);
  for (; i < end; ++i) body(OneTag(), i);
}

// The fp32 sums of K terms over [0, count). Element i is added to virtual lane i % 16; then the
// lanes are added pairwise (8, 4, 2, 1 apart), for every vector width.
// terms(tag, i, out): out[k] = term k of the elements from i on.
template <int K, class Terms>
HWY_INLINE void lane_sums(std::int64_t count, float (&sums)[K], const Terms& terms) {
  constexpr std::int64_t kLanes = 16;
  const WideTag wide;
  constexpr std::int64_t kStep = hn::MaxLanes(WideTag());
  static_assert(kLanes % kStep == 0);
  using Vector = hn::Vec<WideTag>;
  Vector totals[K][kLanes / kStep];
  for (auto& total : totals) {
    for (Vector& part : total) part = hn::Zero(wide);
  }
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t part = 0; part < kLanes / kStep; ++part) {
      Vector values[K];
      terms(wide, i + part * kStep, values);
      for (int k = 0; k < K; ++k) totals[k][part] = hn::Add(totals[k][part], values[k]);
    }
  }
  float lanes[K][kLanes];
  for (int k = 0; k < K; ++k) {
    for (std::int64_t part = 0; part < kLanes / kStep; ++part) {
      hn::StoreU(totals[k][part], wide, lanes[k] + part * kStep);
    }
  }
  for (; i < count; ++i) {
    hn::Vec<OneTag> values[K];
    terms(OneTag(), i, values);
    for (int k = 0; k < K; ++k) lanes[k][i % kLanes] += hn::GetLane(values[k]);
  }
  for (int k = 0; k < K; ++k) {
    for (std::int64_t width = kLanes / 2; width > 0; width /= 2) {
      for (std::int64_t lane = 0; lane < width; ++lane) lanes[k][lane] += lanes[k][lane + width];
    }
    sums[k] = lanes[k][0];
  }
}

}  // namespace sluice::kernels::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
