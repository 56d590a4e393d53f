// Attention's forward pass on tensor cores (FlashAttention-2, Dao 2023, algorithm 1).
//
// A block computes the outputs of one tile of queries. It walks over the visible keys in rising
// order, 64 at a time, with a running maximum m and sum l of each row:
//
//   s = q k^T    m' = max(m, s)    p = exp(scale (s - m'))
//   l = l exp(scale (m - m')) + sum(p)    out = out exp(scale (m - m')) + p v
//
// and finally out / l and lse = scale m + ln l. Keys and values have one tile each in shared
// memory: values arrive while scores are computed, and the next keys while values are weighted.
#include "kernels/cuda/attention_tile.cuh"

namespace sluice::kernels::cuda {
namespace {

constexpr int kKeys = 64;
constexpr int kKeyTiles = kKeys / 8;

// Two row tiles of a warp share every fragment of keys and values, if registers allow it. At 256
// columns the three tiles take 99 KiB, the limit of a block on sm_120.
template <int kDim>
struct ForwardTiles {
  static constexpr int kRowTiles = kDim <= 128 ? 2 : 1;
  static constexpr int kWarpRows = 16 * kRowTiles;
  static constexpr int kQueries = kWarpRows * kAttentionWarps;
  static constexpr std::size_t kSharedBytes =
      2 * (tile_elems(kQueries, kDim) + 2 * tile_elems(kKeys, kDim));
};

// Each lane has two rows (lane / 4, and eight rows below it) of every row tile, and a quarter of
// their columns. `maximum` is of unscaled scores; `sum` is only this lane's part.
template <int kRowTiles>
struct RunningSoftmax {
  float maximum[kRowTiles][2], sum[kRowTiles][2];

  __device__ RunningSoftmax() {
    for (int i = 0; i < kRowTiles * 2; ++i) {
      maximum[i / 2][i % 2] = -INFINITY;
      sum[i / 2][i % 2] = 0.0f;
    }
  }

  // Turns scores into 2^(scale2 * (score - maximum)) and rescales earlier sums to the new maximum.
  template <int kOutTiles>
  __device__ __forceinline__ void step(Sums<kRowTiles, kKeyTiles>& scores,
                                       Sums<kRowTiles, kOutTiles>& out, float scale2) {
#pragma unroll
    for (int i = 0; i < kRowTiles * 2; ++i) {
      const int tile = i / 2, half = i % 2;
      float largest = maximum[tile][half];
#pragma unroll
      for (int key = 0; key < kKeyTiles; ++key) {
        largest =
            fmaxf(largest, fmaxf(scores[tile][key][half * 2], scores[tile][key][half * 2 + 1]));
      }
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      const float shift = largest * scale2;
      // The old shift is rounded like the new one, so an unchanged maximum gives the factor 1.
      // Fused, the factor would be off by the rounding of the shift, the same way at every tile.
      const float factor = fast_exp2(__fsub_rn(__fmul_rn(maximum[tile][half], scale2), shift));
      maximum[tile][half] = largest;
      float added = 0.0f;
#pragma unroll
      for (int j = 0; j < kKeyTiles * 2; ++j) {
        float& score = scores[tile][j / 2][half * 2 + j % 2];
        score = fast_exp2(__fmaf_rn(score, scale2, -shift));
        added += score;
      }
      sum[tile][half] = sum[tile][half] * factor + added;
#pragma unroll
      for (int j = 0; j < kOutTiles * 2; ++j) out[tile][j / 2][half * 2 + j % 2] *= factor;
    }
  }

  // Completes the sums of whole rows, in every lane.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int i = 0; i < kRowTiles * 2; ++i) {
      float& value = sum[i / 2][i % 2];
      value += __shfl_xor_sync(0xffffffffu, value, 1);
      value += __shfl_xor_sync(0xffffffffu, value, 2);
    }
  }
};

// Sets scores of keys after the query to minus infinity. `query`, `key`: first row and column.
template <int kRowTiles>
__device__ __forceinline__ void mask_later_keys(Sums<kRowTiles, kKeyTiles>& scores,
                                                std::int64_t query, std::int64_t key) {
  const auto ahead = static_cast<int>(key - query) + lane_index() % 4 * 2 - lane_index() / 4;
#pragma unroll
  for (int i = 0; i < kRowTiles * kKeyTiles * 4; ++i) {
    const int tile = i / 4 / kKeyTiles, col = i / 4 % kKeyTiles, element = i % 4;
    if (ahead + col * 8 + element % 2 > tile * 16 + element / 2 * 8) {
      scores[tile][col][element] = -INFINITY;
    }
  }
}

// lse = ln(sum) + scale * maximum of the warp's rows; factor = 1 / sum.
template <int kRowTiles>
__device__ __forceinline__ void store_statistics(const RunningSoftmax<kRowTiles>& softmax,
                                                 float scale, std::int64_t rows, float* lse,
                                                 float (&factor)[kRowTiles][2]) {
#pragma unroll
  for (int i = 0; i < kRowTiles * 2; ++i) {
    const int tile = i / 2, half = i % 2;
    const int row = tile * 16 + half * 8 + lane_index() / 4;
    factor[tile][half] = 1.0f / softmax.sum[tile][half];
    if (lane_index() % 4 == 0 && row < rows) {
      lse[row] = softmax.maximum[tile][half] * scale + logf(softmax.sum[tile][half]);
    }
  }
}

template <class T, int kDim>
__global__ void __launch_bounds__(kAttentionThreads) forward_kernel(AttentionForward arguments) {
  using Tiles = ForwardTiles<kDim>;
  const AttentionLayout& layout = arguments.layout;
  const AttentionPlace place = attention_place(layout, layout.heads, Tiles::kQueries, true);
  const std::int64_t kv_head = place.head / layout.group(), stride = layout.packed_stride();
  const T* const qkv = static_cast<const T*>(arguments.qkv);
  const T* const keys = qkv + layout.key(place.batch, kv_head);
  const T* const values = qkv + layout.value(place.batch, kv_head);
  T* const q = dynamic_shared<T>();
  T* const k = q + tile_elems(Tiles::kQueries, kDim);
  T* const v = k + tile_elems(kKeys, kDim);
  const auto load = [&](T* tile, const T* from, std::int64_t row) {
    load_tile<kKeys, kDim, kAttentionThreads>(tile, from + row * stride, stride, layout.time - row,
                                              layout.head_dim);
  };
  load_tile<Tiles::kQueries, kDim, kAttentionThreads>(
      q, qkv + layout.query(place.batch, place.head) + place.first * stride, stride,
      layout.time - place.first, layout.head_dim);
  load(k, keys, 0);
  copy_async_commit();

  const int warp_row = warp_index() * Tiles::kWarpRows;
  const std::int64_t query = place.first + warp_row;
  const std::int64_t end = place.first + Tiles::kQueries;
  const std::int64_t visible = end < layout.time ? end : layout.time;
  const float scale2 = arguments.scale * kLog2E;
  Sums<Tiles::kRowTiles, kDim / 8> out = {};
  RunningSoftmax<Tiles::kRowTiles> softmax;
  // Warps that see none of a step's keys skip the arithmetic, but take part in the barriers.
  for (std::int64_t key = 0; key < visible; key += kKeys) {
    const bool seen = key < query + Tiles::kWarpRows;  // any row of the warp sees keys
    Sums<Tiles::kRowTiles, kKeyTiles> scores;
    copy_async_wait<0>();
    __syncthreads();  // the keys are here, and no warp reads the previous values
    load(v, values, key);
    copy_async_commit();
    if (seen) {
      multiply_scores<kDim>(scores, q, warp_row, k);
      if (key + kKeys > query + 1) mask_later_keys<Tiles::kRowTiles>(scores, query, key);
    }
    copy_async_wait<0>();
    __syncthreads();  // the values are here, and no warp reads these keys
    if (key + kKeys < visible) load(k, keys, key + kKeys);
    copy_async_commit();
    if (seen) {
      softmax.step(scores, out, scale2);
      add_weighted_rows<kDim>(out, scores, v, 0);
    }
  }

  softmax.finish();
  float factor[Tiles::kRowTiles][2];
  store_statistics(softmax, arguments.scale, layout.time - query,
                   arguments.lse + layout.statistic(place.batch, place.head) + query, factor);
  T* const to = static_cast<T*>(arguments.out) + layout.out(place.batch, place.head);
  const std::int64_t out_stride = layout.out_stride();
  store_rows<kDim, T>(out, factor, q + warp_row * tile_stride(kDim),
                      {to + query * out_stride, out_stride, layout.time - query, layout.head_dim});
}

}  // namespace

void tensor_core_forward(StreamHandle stream, DType dtype, const AttentionForward& arguments) {
  const AttentionLayout& layout = arguments.layout;
  with_narrow_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    with_padded_dim(layout.head_dim, [&](auto dim) {
      constexpr int kDim = decltype(dim)::value;
      using Tiles = ForwardTiles<kDim>;
      launch(stream, attention_grid(layout, layout.heads, Tiles::kQueries), dim3(kAttentionThreads),
             Tiles::kSharedBytes, forward_kernel<T, kDim>, arguments);
    });
  });
}

}  // namespace sluice::kernels::cuda
