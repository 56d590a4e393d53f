// Sums over a warp and a block in an order that depends only on the position of the numbers, and
// grid sizes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/simt.cuh"

namespace sluice::kernels::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr int kWarpSize = 32;

__device__ __forceinline__ int lane_index() {
  return static_cast<int>(threadIdx.x) % kWarpSize;
}
__device__ __forceinline__ int warp_index() {
  return static_cast<int>(threadIdx.x) / kWarpSize;
}

// All lanes get the same bits, because both partners of an exchange add the same two numbers.
template <class T>
__device__ __forceinline__ T warp_sum(T value) {
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}

// Sums over a block of whole warps (blockDim.x threads in one dimension); all threads get the sum.
// Each warp sums its own numbers, then every warp sums the warps' sums. One barrier. `scratch`: 32
// shared numbers, free again after the next barrier.
template <class T>
__device__ __forceinline__ T block_sum(T value, T* scratch) {
  value = warp_sum(value);
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;
  if (lane_index() == 0) scratch[warp_index()] = value;
  __syncthreads();
  return warp_sum(lane_index() < warps ? scratch[lane_index()] : T(0));
}

__device__ __forceinline__ std::int64_t grid_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ std::int64_t grid_threads() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}

inline constexpr std::int64_t kMaxGridX = 0x7fffffff;
inline constexpr std::int64_t kMaxGridYZ = 65535;

// Host code: blocks for `items` (> 0) items, one per block and grid stride: as many as the
// multiprocessors hold at once, but no more than there are items.
inline unsigned grid_stride_blocks(std::int64_t items, int block_threads) {
  constexpr int kThreadsPerMultiprocessor = 2048;
  const std::int64_t resident =
      std::int64_t{multiprocessor_count()} * (kThreadsPerMultiprocessor / block_threads);
  return static_cast<unsigned>(std::clamp<std::int64_t>(std::min(items, resident), 1, kMaxGridX));
}

}  // namespace sluice::kernels::cuda
