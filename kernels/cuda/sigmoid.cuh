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

// T: what the result is for. A number that is rounded to 16 bits may come from the GPU's
// approximate exp and division (2 ulp of fp32 and 2^-21 |x| or so), which keep a map of it at the
// speed of memory.
template <class T>
__device__ __forceinline__ Sigmoid sigmoid(float x) {
  constexpr bool kExact = std::is_same_v<T, float>;
  const float e = kExact ? expf(-x) : __expf(-x);
  const float value = kExact ? 1.0f / (1.0f + e) : __fdividef(1.0f, 1.0f + e);
  // e = inf would make inf * 0; with the greatest finite number the product is 0, as it should be.
  return {value, fminf(e, 3.4028234e38f) * value};
}

}  // namespace sluice::kernels::cuda
