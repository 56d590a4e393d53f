// Offsets of attention's arrays, and the mapping from blocks to tiles. Shared by the tensor-core
// and the plain kernels.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/error.hpp"
#include "kernels/cuda/attention.hpp"
#include "kernels/cuda/simt.cuh"

namespace sluice::kernels::cuda {

// Offsets in elements. Rows of qkv are packed_stride() apart, rows of out and dout out_stride().
struct AttentionLayout {
  std::int64_t batch, time, heads, kv_heads, head_dim;

  __host__ __device__ std::int64_t group() const { return heads / kv_heads; }
  __host__ __device__ std::int64_t packed_stride() const {
    return (heads + 2 * kv_heads) * head_dim;
  }
  __host__ __device__ std::int64_t out_stride() const { return heads * head_dim; }
  __device__ std::int64_t query(std::int64_t b, std::int64_t head) const {
    return b * time * packed_stride() + head * head_dim;
  }
  __device__ std::int64_t key(std::int64_t b, std::int64_t kv_head) const {
    return query(b, heads + kv_head);
  }
  __device__ std::int64_t value(std::int64_t b, std::int64_t kv_head) const {
    return query(b, heads + kv_heads + kv_head);
  }
  __device__ std::int64_t out(std::int64_t b, std::int64_t head) const {
    return b * time * out_stride() + head * head_dim;
  }
  // Offset in lse and delta.
  __device__ std::int64_t statistic(std::int64_t b, std::int64_t head) const {
    return (b * heads + head) * time;
  }
};

inline AttentionLayout layout_of(const AttentionShape& shape) {
  return {shape.batch, shape.time, shape.heads, shape.kv_heads, shape.head_dim};
}

// The factor of scores.
inline float attention_scale(std::int64_t head_dim) {
  return 1.0f / std::sqrt(static_cast<float>(head_dim));
}

struct AttentionForward {
  AttentionLayout layout;
  float scale;  // factor of scores: 1 / sqrt(head_dim)
  const void* qkv;
  void* out;
  float* lse;
};

struct AttentionBackward {
  AttentionLayout layout;
  float scale;
  const void *dout, *qkv;
  const float *lse, *delta;
  void* dqkv;
};

// The tile of a block: `rows` queries or keys of one head of one sequence. Consecutive blocks have
// the same tile of neighbouring heads, so that heads that share keys run together.
struct AttentionPlace {
  std::int64_t batch, head, first;  // first: row of the tile
};

// last_first: the last tile runs first, because causal attention gives it the most work.
__device__ inline AttentionPlace attention_place(const AttentionLayout& layout, std::int64_t heads,
                                                 std::int64_t rows, bool last_first) {
  const std::int64_t pairs = layout.batch * heads, pair = blockIdx.x % pairs;
  const std::int64_t tiles = (layout.time + rows - 1) / rows;
  const std::int64_t tile = blockIdx.x / pairs;
  return {pair / heads, pair % heads, (last_first ? tiles - 1 - tile : tile) * rows};
}

// Blocks for attention_place: one per tile.
inline dim3 attention_grid(const AttentionLayout& layout, std::int64_t heads, std::int64_t rows) {
  const std::int64_t blocks = (layout.time + rows - 1) / rows * layout.batch * heads;
  SLUICE_CHECK(blocks <= INT32_MAX);
  return dim3(static_cast<unsigned>(blocks));
}

// delta of attention's arrays (attention.cu).
void launch_delta(StreamHandle stream, const AttentionShape& shape, const void* dout,
                  const void* out, float* delta);
// Tensor cores. dtype: kBF16 or kF16; head_dim: a multiple of 8.
void tensor_core_forward(StreamHandle stream, DType dtype, const AttentionForward& arguments);
void tensor_core_backward(StreamHandle stream, DType dtype, const AttentionBackward& arguments);
// fp32 arithmetic. Any act dtype and head_dim.
void plain_forward(StreamHandle stream, DType dtype, const AttentionForward& arguments);
void plain_backward(StreamHandle stream, DType dtype, const AttentionBackward& arguments);

}  // namespace sluice::kernels::cuda
