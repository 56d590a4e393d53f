// The logistic function in device code.
#pragma once

#include <type_traits>

#include "kernels/cuda/simt.cuh"

namespace sluice::kernels::cuda {

// value = 1 / (1 + e^-x) and complement = 1 - value, without cancellation.
struct Sigmoid {
  float value;
  float complement;
};

// T: the type of the final result. A result that is rounded to 16 bits may use the GPU's
// approximate exp and division (2 ulp of fp32 and about 2^-21 |x|), which keep an elementwise
// kernel at memory speed.
template <class T>
__device__ __forceinline__ Sigmoid sigmoid(float x) {
  constexpr bool kExact = std::is_same_v<T, float>;
  const float e = kExact ? expf(-x) : __expf(-x);
  // __fdividef gives 0 for divisors above 2^126; quarters of both stay below.
  const float value = kExact ? 1.0f / (1.0f + e) : __fdividef(0.25f, 0.25f + 0.25f * e);
  // e = infinity would give inf * 0. The largest finite number gives 0 instead, as it should.
  return {value, fminf(e, 3.4028234e38f) * value};
}

}  // namespace sluice::kernels::cuda
