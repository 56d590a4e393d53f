// Tiles of 16 x 16 scores in fp32 arithmetic: shared by attention_plain.cu and attention_part.cu.
//
// A block has 256 threads: thread (i, j) computes one score and owns columns j, j + 16, ... of row
// i of the results. Tiles lie in shared memory as fp32; sums use fused multiply-adds in a fixed
// order.
#pragma once

#include "kernels/cuda/attention_layout.cuh"
#include "kernels/cuda/numeric.cuh"
#include "kernels/cuda/reduce.cuh"

namespace sluice::kernels::cuda {

inline constexpr int kSide = 16;  // rows of every tile; half a warp holds a row of scores
inline constexpr int kTileThreads = kSide * kSide;
inline constexpr int kOwned = static_cast<int>(kMaxHeadDim) / kSide;  // columns of a thread
inline constexpr int kScoreStride = kSide + 1;

__device__ __forceinline__ int row_index() {
  return static_cast<int>(threadIdx.x) / kSide;
}
__device__ __forceinline__ int col_index() {
  return static_cast<int>(threadIdx.x) % kSide;
}

// Rows of head_dim columns in shared memory, padded by one float, so that threads of a warp that
// read one column use different banks.
struct Tile {
  float* data;
  std::int64_t head_dim;

  __device__ float& at(int row, std::int64_t col) const { return data[row * (head_dim + 1) + col]; }
  __device__ static std::int64_t floats(std::int64_t head_dim) { return kSide * (head_dim + 1); }

  // Loads rows [0, rows) of `from` and fills the rest with zeros.
  template <class T>
  __device__ void load(const T* from, std::int64_t stride, std::int64_t rows) const {
    for (std::int64_t i = threadIdx.x; i < kSide * head_dim; i += kTileThreads) {
      const std::int64_t row = i / head_dim, col = i % head_dim;
      at(static_cast<int>(row), col) = row < rows ? load_float(from[row * stride + col]) : 0.0f;
    }
  }

  // Returns the dot product of a row with a row of another tile.
  __device__ float dot(int row, const Tile& other, int other_row) const {
    float sum = 0.0f;
    for (std::int64_t d = 0; d < head_dim; ++d) sum = fmaf(at(row, d), other.at(other_row, d), sum);
    return sum;
  }
};

// The columns of a result's row that a thread owns.
struct OwnedSums {
  float values[kOwned] = {};

  // += weights[row, :] tile, weights [16][kScoreStride]; transposed: weights[:, row].
  __device__ __forceinline__ void add(const float* weights, bool transposed, const Tile& tile) {
    for (int k = 0; k < kSide; ++k) {
      const float weight = transposed ? weights[k * kScoreStride + row_index()]
                                      : weights[row_index() * kScoreStride + k];
#pragma unroll
      for (int i = 0; i < kOwned; ++i) {
        const std::int64_t d = col_index() + i * kSide;
        if (d < tile.head_dim) values[i] = fmaf(weight, tile.at(k, d), values[i]);
      }
    }
  }

  // to[row, :] = sums * factor.
  template <class T>
  __device__ __forceinline__ void store(float factor, T* to, std::int64_t stride, std::int64_t rows,
                                        std::int64_t head_dim) const {
    if (row_index() >= rows) return;
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      const std::int64_t d = col_index() + i * kSide;
      if (d < head_dim) to[row_index() * stride + d] = from_float<T>(values[i] * factor);
    }
  }

  // to[row, :] = sums * factor, plus to[row, :] * kept unless `first`.
  __device__ __forceinline__ void merge(bool first, float kept, float factor, float* to,
                                        std::int64_t stride, std::int64_t rows,
                                        std::int64_t head_dim) const {
    if (row_index() >= rows) return;
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      const std::int64_t d = col_index() + i * kSide;
      if (d >= head_dim) continue;
      float& at = to[row_index() * stride + d];
      at = fmaf(values[i], factor, first ? 0.0f : at * kept);
    }
  }
};

// Maximum and sum over the 16 lanes of one row.
__device__ __forceinline__ float row_maximum(float value) {
  for (int distance = kSide / 2; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}
__device__ __forceinline__ float row_sum(float value) {
  for (int distance = kSide / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}

// Scores of a tile that count: of its first rows and columns, those at most `ahead` columns right
// of the diagonal.
struct VisibleScores {
  std::int64_t rows, cols, ahead;

  __device__ __forceinline__ bool holds(int row, int col) const {
    return row < rows && col < cols && col - row <= ahead;
  }
};

// The four tiles of the backward pass, and the weights that queries and keys in them produce.
struct GradientTiles {
  Tile q, dout, k, v;
  float *p, *ds;  // [16][kScoreStride], a row for each query

  __device__ GradientTiles(float* shared, std::int64_t head_dim) {
    const std::int64_t floats = Tile::floats(head_dim);
    q = {shared, head_dim}, dout = {shared + floats, head_dim};
    k = {shared + 2 * floats, head_dim}, v = {shared + 3 * floats, head_dim};
    p = shared + 4 * floats;
    ds = p + kSide * kScoreStride;
  }

  // Computes p and ds of thread (i, j): query i, key j. lse, delta: of the tile's first query.
  // Both are 0 where the score does not count: that of a key which does not exist would be 0, and
  // exp(0 - lse) may overflow.
  __device__ __forceinline__ void make_weights(float scale, const float* lse, const float* delta,
                                               const VisibleScores& visible) const {
    const int row = row_index(), col = col_index();
    float probability = 0.0f, grad = 0.0f;
    if (visible.holds(row, col)) {
      const float score = scale * q.dot(row, k, col);
      probability = expf(score - lse[row]);
      grad = probability * (dout.dot(row, v, col) - delta[row]);
    }
    p[row * kScoreStride + col] = probability;
    ds[row * kScoreStride + col] = grad;
  }
};

// Dynamic shared memory of `tiles` tiles and `weights` blocks of weights.
inline std::size_t plain_tile_bytes(std::int64_t head_dim, int tiles, int weights) {
  const std::int64_t floats =
      tiles * kSide * (head_dim + 1) + std::int64_t{weights} * kSide * kScoreStride;
  return static_cast<std::size_t>(floats) * sizeof(float);
}

}  // namespace sluice::kernels::cuda
