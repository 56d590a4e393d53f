// exp and the logistic function on vectors, without fused multiply-add. They are accurate to about
// 1 and 2 ulp of fp32, with the same bits on every instruction set. Included once per instruction
// set, like simd.hpp.
#if defined(SLUICE_KERNELS_HOST_SIGMOID) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_KERNELS_HOST_SIGMOID
#undef SLUICE_KERNELS_HOST_SIGMOID
#else
#define SLUICE_KERNELS_HOST_SIGMOID
#endif

#include <cstdint>

#include "kernels/host/simd.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::host::HWY_NAMESPACE {

// e^x; infinity above 88.8, 0 below -104, denormals in between. A NaN gives an arbitrary number:
// callers multiply the result by x, which restores the NaN.
template <class D>
HWY_INLINE hn::Vec<D> exp_no_nan(D d, hn::Vec<D> x) {
  const hn::RebindToSigned<D> int_tag;
  x = hn::Max(hn::Min(x, hn::Set(d, 89.0f)), hn::Set(d, -105.0f));
  // n = round(x / ln 2). Adding 1.5 * 2^23 leaves no fraction bits and puts n into the low bits.
  const auto magic = hn::Set(d, 12582912.0f);
  const auto shifted = hn::Add(hn::Mul(x, hn::Set(d, 1.44269504f)), magic);
  const auto n = hn::Sub(shifted, magic);
  const auto n_int = hn::Sub(hn::BitCast(int_tag, shifted), hn::BitCast(int_tag, magic));
  // r = x - n ln 2, |r| <= 0.35. The upper part of ln 2 has 9 bits, so n times it is exact (Cody
  // and Waite). Polynomial for (e^r - 1 - r) / r^2 from Cephes expf (S. Moshier).
  auto r = hn::Sub(x, hn::Mul(n, hn::Set(d, 0.693359375f)));
  r = hn::Add(r, hn::Mul(n, hn::Set(d, 2.12194440e-4f)));
  auto p = hn::Set(d, 1.9875691500e-4f);
  p = hn::Add(hn::Mul(p, r), hn::Set(d, 1.3981999507e-3f));
  p = hn::Add(hn::Mul(p, r), hn::Set(d, 8.3334519073e-3f));
  p = hn::Add(hn::Mul(p, r), hn::Set(d, 4.1665795894e-2f));
  p = hn::Add(hn::Mul(p, r), hn::Set(d, 1.6666665459e-1f));
  p = hn::Add(hn::Mul(p, r), hn::Set(d, 5.0000001201e-1f));
  p = hn::Add(hn::Add(hn::Mul(p, hn::Mul(r, r)), r), hn::Set(d, 1.0f));
  // 2^n as two factors, because n from -152 to 128 exceeds the range of one exponent.
  const auto half = hn::ShiftRight<1>(n_int);
  const auto power = [&](auto exponent) HWY_ATTR {
    return hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(exponent, hn::Set(int_tag, 127))));
  };
  return hn::Mul(hn::Mul(p, power(half)), power(hn::Sub(n_int, half)));
}

// value = 1 / (1 + e^-x) and complement = 1 - value, each to a few ulp (no cancellation).
template <class D>
struct Sigmoid {
  hn::Vec<D> value;
  hn::Vec<D> complement;
};

template <class D>
HWY_INLINE Sigmoid<D> sigmoid(D d, hn::Vec<D> x) {
  const auto e = exp_no_nan(d, hn::Neg(x));
  const auto value = hn::Div(hn::Set(d, 1.0f), hn::Add(hn::Set(d, 1.0f), e));
  // e = infinity would give inf * 0. The largest finite number gives 0 instead, and callers
  // multiply it by value = 0 anyway.
  return {value, hn::Mul(hn::Min(e, hn::Set(d, 3.4028234e38f)), value)};
}

}  // namespace sluice::kernels::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
