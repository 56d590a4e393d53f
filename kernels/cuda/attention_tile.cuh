// The tile products of attention's tensor-core kernels. A block has four warps. Warp w owns the
// 16 * kRowTiles rows of its stationary tile from row w * 16 * kRowTiles on, so every sum over a
// row stays within the warp.
//
// Tiles hold head_dim columns, padded with zeros to kDim (64, 128 or 256).
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/attention_layout.cuh"
#include "kernels/cuda/mma_tile.cuh"

namespace sluice::kernels::cuda {

inline constexpr int kAttentionThreads = 128;
inline constexpr int kAttentionWarps = kAttentionThreads / kWarpSize;
inline constexpr float kLog2E = 1.44269504088896340736f;

// 2^x from the special function unit: relative error 2^-22; results below 2^-126 become 0.
__device__ __forceinline__ float fast_exp2(float x) {
#ifdef SLUICE_CUDA_EMULATION
  return std::exp2(x);
#else
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#endif
}

// Accumulators of 16 * kRowTiles rows and 8 * kColTiles columns.
template <int kRowTiles, int kColTiles>
using Sums = float[kRowTiles][kColTiles][4];

// scores = stationary[row .., :] moving[:, :]^T, with a column for each row of the moving tile.
template <int kDim, class T, int kRowTiles, int kColTiles>
__device__ __forceinline__ void multiply_scores(Sums<kRowTiles, kColTiles>& scores,
                                                const T* stationary, int row, const T* moving) {
#pragma unroll
  for (int i = 0; i < kRowTiles * kColTiles * 4; ++i) {
    scores[i / 4 / kColTiles][i / 4 % kColTiles][i % 4] = 0.0f;
  }
#pragma unroll
  for (int depth = 0; depth < kDim; depth += 16) {
    std::uint32_t a[kRowTiles][4];
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      load_a<kDim>(a[tile], stationary, row + tile * 16, depth);
    }
#pragma unroll
    for (int col = 0; col < kColTiles; col += 2) {
      std::uint32_t b[4];
      load_b_transposed<kDim>(b, moving, depth, col * 8);
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
        multiply_pair<T>(scores[tile][col], scores[tile][col + 1], a[tile], b);
      }
    }
  }
}

// sums += weights moving[:, first_col ..]; the weights are first rounded to T.
template <int kDim, class T, int kRowTiles, int kWeightTiles, int kColTiles>
__device__ __forceinline__ void add_weighted_rows(Sums<kRowTiles, kColTiles>& sums,
                                                  const Sums<kRowTiles, kWeightTiles>& weights,
                                                  const T* moving, int first_col) {
#pragma unroll
  for (int step = 0; step < kWeightTiles; step += 2) {
    std::uint32_t a[kRowTiles][4];
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      fragment_of<T>(a[tile], weights[tile][step], weights[tile][step + 1]);
    }
#pragma unroll
    for (int col = 0; col < kColTiles; col += 2) {
      std::uint32_t b[4];
      load_b<kDim>(b, moving, step * 8, first_col + col * 8);
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
        multiply_pair<T>(sums[tile][col], sums[tile][col + 1], a[tile], b);
      }
    }
  }
}

// The rows of a result in memory: `rows` of the warp's tile exist, with `cols` columns.
template <class T>
struct ResultRows {
  T* data;
  std::int64_t stride, rows, cols;
};

// to = sums * factor (one factor per row of the accumulators), rounded once. `tile`: the warp's own
// rows of a stationary tile that is no longer read; they are overwritten.
template <int kDim, class T, int kRowTiles, int kColTiles>
__device__ __forceinline__ void store_rows(const Sums<kRowTiles, kColTiles>& sums,
                                           const float (&factor)[kRowTiles][2], T* tile,
                                           const ResultRows<T>& to) {
  __syncwarp();
  const int lane = lane_index();
#pragma unroll
  for (int row = 0; row < kRowTiles; ++row) {
#pragma unroll
    for (int i = 0; i < kColTiles * 2; ++i) {
      const int col = i / 2, half = i % 2;
      const float* const pair = sums[row][col] + half * 2;
      T* const at =
          tile + (row * 16 + half * 8 + lane / 4) * tile_stride(kDim) + col * 8 + lane % 4 * 2;
      *reinterpret_cast<std::uint32_t*>(at) =
          pack_pair<T>(pair[0] * factor[row][half], pair[1] * factor[row][half]);
    }
  }
  __syncwarp();
  for (int piece = lane; piece < kRowTiles * 16 * kColTiles; piece += kWarpSize) {
    const int row = piece / kColTiles, col = piece % kColTiles * kPieceElems;
    if (row >= to.rows || col >= to.cols) continue;
    *reinterpret_cast<uint4*>(to.data + row * to.stride + col) =
        *reinterpret_cast<const uint4*>(tile + row * tile_stride(kDim) + col);
  }
}

// Calls body with the smallest of 64, 128 and 256 that fits head_dim, as a constant.
template <class Body>
void with_padded_dim(std::int64_t head_dim, const Body& body) {
  if (head_dim <= 64) {
    body(std::integral_constant<int, 64>());
  } else if (head_dim <= 128) {
    body(std::integral_constant<int, 128>());
  } else {
    body(std::integral_constant<int, 256>());
  }
}

// Calls body with TypeOf<T> for a 16-bit dtype.
template <class Body>
void with_narrow_type(DType dtype, const Body& body) {
  if (dtype == DType::kBF16) {
    body(TypeOf<bf16>());
  } else {
    body(TypeOf<f16>());
  }
}

}  // namespace sluice::kernels::cuda
