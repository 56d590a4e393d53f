// Loads and stores of gradient, weight and moments for a thread of an update. A thread has four
// elements: two neighbours, and the two that lie 32 elements further. One Philox block then has the
// noise of both pairs (kernels/stochastic_rounding.hpp), and a warp accesses whole lines.
#pragma once

#include <cstdint>

#include "kernels/cuda/numeric.cuh"
#include "kernels/cuda/optimizer/block8.cuh"
#include "kernels/cuda/simt.cuh"
#include "kernels/split_master.hpp"
#include "kernels/stochastic_rounding.hpp"
#include "kernels/update_arrays.hpp"

namespace sluice::kernels::cuda {

inline constexpr int kThreadElems = 4;
// Elements of a warp.
inline constexpr std::int64_t kUnitElems = kThreadElems * kWarpSize;
static_assert(kUnitElems == static_cast<std::int64_t>(kBlock8Elems));

// The elements of a thread: those of [begin, end) among first, first + 1, first + 32, first + 33.
struct ThreadElems {
  std::int64_t first, begin, end;

  __device__ std::int64_t operator[](int i) const { return first + (i / 2 * 32 + i % 2); }
  __device__ bool has(int i) const {
    const std::int64_t at = (*this)[i];
    return at >= begin && at < end;
  }
};

// First element of lane `lane` in a unit that begins at `base`.
__device__ __forceinline__ std::int64_t first_of_lane(std::int64_t base, int lane) {
  return base + lane / 16 * 64 + lane % 16 * 2;
}

// Loads the elements; those outside the range become T().
template <class T>
__device__ __forceinline__ void load_elems(const T* array, const ThreadElems& elems,
                                           T (&numbers)[kThreadElems]) {
#pragma unroll
  for (int i = 0; i < kThreadElems; i += 2) {
    const T* const from = array + elems[i];
    if (elems.has(i) && elems.has(i + 1) &&
        reinterpret_cast<std::uintptr_t>(from) % (2 * sizeof(T)) == 0) {
      const Pack<T, 2> pair = load_pack<T, 2>(from);
      numbers[i] = pair.values[0];
      numbers[i + 1] = pair.values[1];
    } else {
      numbers[i] = elems.has(i) ? from[0] : T();
      numbers[i + 1] = elems.has(i + 1) ? from[1] : T();
    }
  }
}

template <class T>
__device__ __forceinline__ void store_elems(T* array, const ThreadElems& elems,
                                            const T (&numbers)[kThreadElems]) {
#pragma unroll
  for (int i = 0; i < kThreadElems; i += 2) {
    T* const to = array + elems[i];
    if (elems.has(i) && elems.has(i + 1) &&
        reinterpret_cast<std::uintptr_t>(to) % (2 * sizeof(T)) == 0) {
      store_pack(to, Pack<T, 2>{{numbers[i], numbers[i + 1]}});
    } else {
      if (elems.has(i)) to[0] = numbers[i];
      if (elems.has(i + 1)) to[1] = numbers[i + 1];
    }
  }
}

template <class T>
__device__ __forceinline__ void load_floats(const void* array, const ThreadElems& elems,
                                            float (&numbers)[kThreadElems]) {
  T stored[kThreadElems];
  load_elems(static_cast<const T*>(array), elems, stored);
#pragma unroll
  for (int i = 0; i < kThreadElems; ++i) numbers[i] = load_float(stored[i]);
}

template <class Round>
__device__ __forceinline__ void round_through(float (&numbers)[kThreadElems]) {
#pragma unroll
  for (int i = 0; i < kThreadElems; ++i) numbers[i] = load_float(from_float<Round>(numbers[i]));
}

// Loads gradients before grad_scale.
__device__ __forceinline__ void load_gradient(const UpdateArrays& arrays, const ThreadElems& elems,
                                              float (&g)[kThreadElems]) {
  switch (arrays.grad_format) {
    case GradFormat::kBF16:
      return load_floats<bf16>(arrays.grad, elems, g);
    case GradFormat::kF16:
      return load_floats<f16>(arrays.grad, elems, g);
    case GradFormat::kF32:
      return load_floats<float>(arrays.grad, elems, g);
    case GradFormat::kF32ThroughBF16:
      load_floats<float>(arrays.grad, elems, g);
      return round_through<bf16>(g);
    case GradFormat::kF32ThroughF16:
      load_floats<float>(arrays.grad, elems, g);
      return round_through<f16>(g);
  }
}

// Return a single element.
__device__ __forceinline__ float gradient_at(const UpdateArrays& arrays, std::int64_t at) {
  switch (arrays.grad_format) {
    case GradFormat::kBF16:
      return load_float(static_cast<const bf16*>(arrays.grad)[at]);
    case GradFormat::kF16:
      return load_float(static_cast<const f16*>(arrays.grad)[at]);
    case GradFormat::kF32ThroughBF16:
      return load_float(from_float<bf16>(static_cast<const float*>(arrays.grad)[at]));
    case GradFormat::kF32ThroughF16:
      return load_float(from_float<f16>(static_cast<const float*>(arrays.grad)[at]));
    case GradFormat::kF32:
      break;
  }
  return static_cast<const float*>(arrays.grad)[at];
}
__device__ __forceinline__ float master_at(const UpdateArrays& arrays, std::int64_t at) {
  if (arrays.weight_format != WeightFormat::kSplitBF16) {
    return static_cast<const float*>(arrays.master)[at];
  }
  return join_master({static_cast<const bf16*>(arrays.weight)[at],
                      static_cast<const std::int16_t*>(arrays.master)[at]});
}

__device__ __forceinline__ void load_master(const UpdateArrays& arrays, const ThreadElems& elems,
                                            float (&w)[kThreadElems]) {
  if (arrays.weight_format != WeightFormat::kSplitBF16) {
    return load_elems(static_cast<const float*>(arrays.master), elems, w);
  }
  bf16 upper[kThreadElems];
  std::int16_t remainder[kThreadElems];
  load_elems(static_cast<const bf16*>(arrays.weight), elems, upper);
  load_elems(static_cast<const std::int16_t*>(arrays.master), elems, remainder);
#pragma unroll
  for (int i = 0; i < kThreadElems; ++i) w[i] = join_master({upper[i], remainder[i]});
}

template <class T>
__device__ __forceinline__ void store_weight(const UpdateArrays& arrays, const ThreadElems& elems,
                                             const float (&w)[kThreadElems]) {
  T weights[kThreadElems];
#pragma unroll
  for (int i = 0; i < kThreadElems; ++i) weights[i] = weight_from_float<T>(w[i]);
  store_elems(static_cast<T*>(arrays.weight), elems, weights);
}

__device__ __forceinline__ void store_master(const UpdateArrays& arrays, const ThreadElems& elems,
                                             const float (&w)[kThreadElems]) {
  if (arrays.weight_format == WeightFormat::kSplitBF16) {
    std::int16_t remainder[kThreadElems];
#pragma unroll
    for (int i = 0; i < kThreadElems; ++i) remainder[i] = split_master(w[i]).remainder;
    store_elems(static_cast<std::int16_t*>(arrays.master), elems, remainder);
    return store_weight<bf16>(arrays, elems, w);
  }
  store_elems(static_cast<float*>(arrays.master), elems, w);
  if (arrays.weight_format == WeightFormat::kMasterBF16) store_weight<bf16>(arrays, elems, w);
  if (arrays.weight_format == WeightFormat::kMasterF16) store_weight<f16>(arrays, elems, w);
}

// Moment formats: load(array, elems, numbers), and store, once for each moment of a rule. `key`:
// key of the thread's first element; it is even, with key % 64 < 32.

struct MomentF32 {
  template <int kMoment>
  static __device__ __forceinline__ void load(const void* array, const ThreadElems& elems,
                                              float (&numbers)[kThreadElems]) {
    load_elems(static_cast<const float*>(array), elems, numbers);
  }
  __device__ MomentF32(const UpdateArrays&, std::uint64_t) {}
  template <int kMoment>
  __device__ __forceinline__ void store(void* array, const ThreadElems& elems,
                                        const float (&numbers)[kThreadElems]) const {
    store_elems(static_cast<float*>(array), elems, numbers);
  }
};

struct MomentBF16 {
  std::uint32_t noise[kThreadElems / 2];  // one word for each pair of neighbours

  __device__ MomentBF16(const UpdateArrays& arrays, std::uint64_t key) {
    const PhiloxBlock block =
        philox4x32(arrays.seed, key / kRoundingNoiseKeys * 16 + key % 32 / 2,
                   static_cast<std::uint64_t>(arrays.step), kRoundingNoiseRounds);
    // A selection keeps the words in registers; an index would not.
    const bool second = key % kRoundingNoiseKeys >= 64;
    noise[0] = second ? block[2] : block[0];
    noise[1] = second ? block[3] : block[1];
  }
  template <int kMoment>
  static __device__ __forceinline__ void load(const void* array, const ThreadElems& elems,
                                              float (&numbers)[kThreadElems]) {
    load_floats<bf16>(array, elems, numbers);
  }
  template <int kMoment>
  __device__ __forceinline__ void store(void* array, const ThreadElems& elems,
                                        const float (&numbers)[kThreadElems]) const {
    bf16 rounded[kThreadElems];
#pragma unroll
    for (int i = 0; i < kThreadElems; ++i) {
      const bool lower = (i % 2 == 0) == (kMoment == 1);
      const std::uint32_t half = lower ? noise[i / 2] : noise[i / 2] >> 16;
      rounded[i] = bf16_stochastic(numbers[i], static_cast<std::uint16_t>(half));
    }
    store_elems(static_cast<bf16*>(array), elems, rounded);
  }
};

// A unit is a block. Its elements beyond a tensor's end are zeros.
struct MomentBlock8 {
  __device__ MomentBlock8(const UpdateArrays&, std::uint64_t) {}

  static __device__ __forceinline__ Block8Place place_of(const ThreadElems& elems) {
    return block8_place(static_cast<std::uint64_t>(elems.first) / kBlock8Elems);
  }
  // The codes of the whole block, relative to its first.
  static __device__ __forceinline__ ThreadElems codes_of(const ThreadElems& elems) {
    constexpr auto kElems = static_cast<std::int64_t>(kBlock8Elems);
    return {elems.first % kElems, 0, kElems};
  }
  template <int kMoment>
  static __device__ __forceinline__ void load(const void* array, const ThreadElems& elems,
                                              float (&numbers)[kThreadElems]) {
    constexpr auto kMap = kMoment == 1 ? Block8Map::kMoment1 : Block8Map::kMoment2;
    const auto* const bytes = static_cast<const std::uint8_t*>(array);
    const Block8Place place = place_of(elems);
    const float scale = *reinterpret_cast<const float*>(bytes + place.scale_bytes);
    std::uint8_t codes[kThreadElems];
    load_elems(bytes + place.code_bytes, codes_of(elems), codes);
#pragma unroll
    for (int i = 0; i < kThreadElems; ++i) numbers[i] = block8_decoded<kMap>(scale, codes[i]);
  }
  template <int kMoment>
  __device__ __forceinline__ void store(void* array, const ThreadElems& elems,
                                        const float (&numbers)[kThreadElems]) const {
    constexpr auto kMap = kMoment == 1 ? Block8Map::kMoment1 : Block8Map::kMoment2;
    auto* const bytes = static_cast<std::uint8_t*>(array);
    const Block8Place place = place_of(elems);
    float inside[kThreadElems];
#pragma unroll
    for (int i = 0; i < kThreadElems; ++i) inside[i] = elems.has(i) ? numbers[i] : 0.0f;
    std::uint8_t codes[kThreadElems];
    const float scale = block8_encode_block<kMap>(inside, codes);
    store_elems(bytes + place.code_bytes, codes_of(elems), codes);
    if (lane_index() == 0) *reinterpret_cast<float*>(bytes + place.scale_bytes) = scale;
  }
};

}  // namespace sluice::kernels::cuda
