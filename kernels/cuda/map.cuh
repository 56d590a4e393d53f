// out[i] = op(in0[i], in1[i], ...) over arrays of one act dtype, at memory speed: 16 bytes per
// access if all addresses allow it, with several accesses in flight per thread.
//
//   struct Add { __device__ float operator()(const float (&x)[2]) const { return x[0] + x[1]; } };
//   map<T>(stream, out, elems, Add(), a, b);
//
// op computes in fp32, and each result is rounded once. `out` may be one of the inputs: the same
// thread reads an element before it writes it.
#pragma once

#include <cstdint>

#include "kernels/cuda/numeric.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/stream.hpp"

namespace sluice::kernels::cuda {

inline constexpr int kMapThreads = 256;
// Packs of an array that a thread loads before it computes. Two arrays and 2,048 threads have 256
// KiB in flight per multiprocessor, several times its share of bandwidth times latency
// (3.35 TB/s / 132 * 1 us = 25 KiB on an H100).
inline constexpr int kMapPacks = 4;

template <class T, int kInputs>
struct MapInputs {
  const T* data[kInputs];
};

template <class T, int kInputs, class Op>
__device__ __forceinline__ T map_element(const MapInputs<T, kInputs>& in, std::int64_t i,
                                         const Op& op) {
  float x[kInputs];
#pragma unroll
  for (int n = 0; n < kInputs; ++n) x[n] = load_float(in.data[n][i]);
  return from_float<T>(op(x));
}

// Maps kCount packs, `stride` packs apart, from pack `base` on.
template <int kCount, class T, int kInputs, class Op>
__device__ __forceinline__ void map_packs(const MapInputs<T, kInputs>& in, T* out,
                                          std::int64_t base, std::int64_t stride, const Op& op) {
  constexpr int kElems = kPackElems<T>;
  Pack<T> packs[kInputs][kCount];
#pragma unroll
  for (int n = 0; n < kInputs; ++n) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      packs[n][k] = load_pack(in.data[n] + (base + k * stride) * kElems);
    }
  }
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    Pack<T> result;
#pragma unroll
    for (int e = 0; e < kElems; ++e) {
      float x[kInputs];
#pragma unroll
      for (int n = 0; n < kInputs; ++n) x[n] = load_float(packs[n][k].values[e]);
      result.values[e] = from_float<T>(op(x));
    }
    store_pack(out + (base + k * stride) * kElems, result);
  }
}

template <class T, int kInputs, class Op>
__global__ void __launch_bounds__(kMapThreads)
    map_packs_kernel(MapInputs<T, kInputs> in, T* out, std::int64_t elems, Op op) {
  const std::int64_t packs = elems / kPackElems<T>;
  const std::int64_t stride = grid_threads();
  std::int64_t i = grid_thread();
  for (; i + (kMapPacks - 1) * stride < packs; i += kMapPacks * stride) {
    map_packs<kMapPacks>(in, out, i, stride, op);
  }
  for (; i < packs; i += stride) map_packs<1>(in, out, i, stride, op);
  const std::int64_t rest = packs * kPackElems<T> + grid_thread();
  if (rest < elems) out[rest] = map_element(in, rest, op);
}

template <class T, int kInputs, class Op>
__global__ void __launch_bounds__(kMapThreads)
    map_elements_kernel(MapInputs<T, kInputs> in, T* out, std::int64_t elems, Op op) {
  for (std::int64_t i = grid_thread(); i < elems; i += grid_threads()) {
    out[i] = map_element(in, i, op);
  }
}

// Host code.
template <class T, class Op, class... Input>
void map(StreamHandle stream, void* out, std::int64_t elems, const Op& op, const Input*... inputs) {
  constexpr int kInputs = sizeof...(Input);
  if (elems <= 0) return;
  const bool aligned = all_aligned_to_16(out, inputs...);
  const std::int64_t per_block = kMapThreads * (aligned ? kPackElems<T> : 1);
  const MapInputs<T, kInputs> in{{static_cast<const T*>(static_cast<const void*>(inputs))...}};
  launch(stream, grid_stride_blocks((elems + per_block - 1) / per_block, kMapThreads), kMapThreads,
         0, aligned ? &map_packs_kernel<T, kInputs, Op> : &map_elements_kernel<T, kInputs, Op>, in,
         static_cast<T*>(out), elems, op);
}

}  // namespace sluice::kernels::cuda
