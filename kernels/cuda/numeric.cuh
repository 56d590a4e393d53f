// Numbers in device code: act dtypes as stored, fp32 between loads and stores, 16-byte accesses.
//
// base/dtype.hpp defines the conversions. Its functions are constexpr, so device code calls them
// directly (nvcc --expt-relaxed-constexpr). fp16 uses the GPU's own instructions where they give
// the same bits, which is everywhere except for NaNs.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "kernels/cuda/simt.cuh"
#include "kernels/kernels.hpp"

namespace sluice::kernels::cuda {

__device__ __forceinline__ float load_float(float value) {
  return value;
}
__device__ __forceinline__ float load_float(bf16 value) {
  return to_float(value);
}
__device__ __forceinline__ float load_float(f16 value) {
#ifdef __CUDA_ARCH__
  if ((value.bits & 0x7fffu) <= 0x7c00u) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
    return wide;
  }
#endif
  return to_float(value);
}

// Rounds to nearest, ties to even; NaN stays NaN. For activations and gradients.
template <class T>
__device__ __forceinline__ T from_float(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else if constexpr (std::is_same_v<T, bf16>) {
    return bf16_from_float(value);
  } else {
    static_assert(std::is_same_v<T, f16>);
#ifdef __CUDA_ARCH__
    if (value == value) {
      f16 half;
      asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half.bits) : "f"(value));
      return half;
    }
#endif
    return f16_from_float(value);
  }
}

// For weights: bf16 ties go away from zero, other dtypes round as from_float.
template <class T>
__device__ __forceinline__ T weight_from_float(float value) {
  if constexpr (std::is_same_v<T, bf16>) {
    return bf16_weight_from_float(value);
  } else {
    return from_float<T>(value);
  }
}

// Number of elements that one 16-byte access moves.
template <class T>
inline constexpr int kPackElems = 16 / static_cast<int>(sizeof(T));

template <class T, int kElems = kPackElems<T>>
struct alignas(sizeof(T) * kElems) Pack {
  T values[kElems];
};

// One access of sizeof(Pack) bytes. `from` and `to` must be aligned to that.
template <class T, int kElems = kPackElems<T>>
__device__ __forceinline__ Pack<T, kElems> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, kElems>*>(from);
}
template <class T, int kElems>
__device__ __forceinline__ void store_pack(T* to, const Pack<T, kElems>& pack) {
  *reinterpret_cast<Pack<T, kElems>*>(to) = pack;
}

// Host code: whether all addresses (and distances in bytes, as numbers) are divisible by 16.
template <class... Value>
bool all_aligned_to_16(Value... values) {
  const auto number = [](auto value) {
    if constexpr (std::is_pointer_v<decltype(value)>) {
      return reinterpret_cast<std::uintptr_t>(value);
    } else {
      return static_cast<std::uintptr_t>(value);
    }
  };
  return ((number(values) | ...) & 15u) == 0;
}

template <class T>
struct TypeOf {
  using type = T;
};

// Host code: calls body(TypeOf<T>()) for an act dtype; InternalError for any other.
template <class Body>
void with_act_type(DType dtype, const Body& body) {
  SLUICE_CHECK(is_act_dtype(dtype));
  if (dtype == DType::kBF16) {
    body(TypeOf<bf16>());
  } else if (dtype == DType::kF16) {
    body(TypeOf<f16>());
  } else {
    body(TypeOf<float>());
  }
}

}  // namespace sluice::kernels::cuda
