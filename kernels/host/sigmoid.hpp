// exp and the logistic function on vectors, without fused multiply-add: about 1 ulp and 2 ulp of
// fp32, the same bits on every instruction set. Included once for each of them, as simd.hpp.
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

// e^x; inf above 88.8, 0 below -104 (denormals between). A NaN gives some number: callers multiply
// the result by x, which brings the NaN back.
template <class D>
HWY_INLINE hn::Vec<D> exp_no_nan(D d, hn::Vec<D> x) {
  const hn::RebindToSigned<D> int_tag;
  x = hn::Max(hn::Min(x, hn::Set(d, 89.0f)), hn::Set(d, -105.0f));
  // n = round(x / ln 2): adding 1.5 * 2^23 leaves no fraction bits, and n in the low bits.
  const auto magic = hn::Set(d, 12582912.0f);
  const auto shifted = hn::Add(hn::Mul(x, hn::Set(d, 1.44269504f)), magic);
  const auto n = hn::Sub(shifted, magic);
  const auto n_int = hn::Sub(hn::BitCast(int_tag, shifted), hn::BitCast(int_tag, magic));
  // r = x - n ln 2, |r| <= 0.35. The upper part of ln 2 has 9 bits, so n times it is exact (Cody
  // and Waite); polynomial for (e^r - 1 - r) / r^2 of Cephes expf (S. Moshier).
  auto r = hn::Sub(x, hn::Mul(n, hn::Set(d, 0.693359375f)));
  r = hn::Add(r, hn::Mul(n, hn::Set(d, 2.12194440e-4f)));
  auto p = hn::Set(d, 1.9875691500e-4f);
  p = hn::Add(hn::Mul(p, r), hn::Set(d, 1.3981999507e-3f));
  p = hn::Add(hn::Mul(p, r), hn::Set(d, 8.3334519073e-3f));
  p = hn::Add(hn::Mul(p, r), hn::Set(d, 4.1665795894e-2f));
  p = hn::Add(hn::Mul(p, r), hn::Set(d, 1.6666665459e-1f));
  p = hn::Add(hn::Mul(p, r), hn::Set(d, 5.0000001201e-1f));
  p = hn::Add(hn::Add(hn::Mul(p, hn::Mul(r, r)), r), hn::Set(d, 1.0f));
  // 2^n in two factors, for n from -152 to 128 leaves the range of one exponent.
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
  // e = inf would make inf * 0; with the greatest finite number the product is 0, and the callers
  // multiply it by value = 0 anyway.
  return {value, hn::Mul(hn::Min(e, hn::Set(d, 3.4028234e38f)), value)};
}

}  // namespace sluice::kernels::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
