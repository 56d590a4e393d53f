// Attention in fp32 arithmetic without tensor cores: for fp32 arrays, and for head sizes that the
// tensor-core kernels do not support.
//
// The walk over tiles is that of attention_forward.cu and attention_backward.cu, with tiles of
// 16 x 16 scores and 256 threads: thread (i, j) computes one score and owns columns j, j + 16, ...
// of row i of the results. Tiles lie in shared memory as fp32; sums use fused multiply-adds in a
// fixed order.
#include "kernels/cuda/attention_layout.cuh"
#include "kernels/cuda/numeric.cuh"
#include "kernels/cuda/reduce.cuh"

namespace sluice::kernels::cuda {
namespace {

constexpr int kSide = 16;  // rows of every tile; half a warp holds a row of scores
constexpr int kThreads = kSide * kSide;
constexpr int kOwned = static_cast<int>(kMaxHeadDim) / kSide;  // columns of a thread
constexpr int kScoreStride = kSide + 1;

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
    for (std::int64_t i = threadIdx.x; i < kSide * head_dim; i += kThreads) {
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

// A block computes the outputs of 16 queries, with a running maximum and sum per row.
template <class T>
__global__ void __launch_bounds__(kThreads) plain_forward_kernel(AttentionForward arguments) {
  __shared__ float weights[kSide * kScoreStride];
  const AttentionLayout& layout = arguments.layout;
  const AttentionPlace place = attention_place(layout, layout.heads, kSide, true);
  const std::int64_t stride = layout.packed_stride(), kv_head = place.head / layout.group();
  const std::int64_t tile_floats = Tile::floats(layout.head_dim);
  float* const shared = dynamic_shared<float>();
  const Tile q{shared, layout.head_dim}, k{shared + tile_floats, layout.head_dim};
  const Tile v{shared + 2 * tile_floats, layout.head_dim};
  const T* const qkv = static_cast<const T*>(arguments.qkv);
  const std::int64_t rows = layout.time - place.first;
  q.load(qkv + layout.query(place.batch, place.head) + place.first * stride, stride, rows);

  const int row = row_index(), col = col_index();
  OwnedSums out;
  float maximum = -INFINITY, sum = 0.0f;
  for (std::int64_t key = 0; key <= place.first; key += kSide) {
    __syncthreads();  // no thread reads the previous tiles
    k.load(qkv + layout.key(place.batch, kv_head) + key * stride, stride, layout.time - key);
    v.load(qkv + layout.value(place.batch, kv_head) + key * stride, stride, layout.time - key);
    __syncthreads();
    const bool visible = key + col <= place.first + row;
    const float score = visible ? arguments.scale * q.dot(row, k, col) : -INFINITY;
    // Rescale earlier sums to the new maximum.
    const float largest = fmaxf(maximum, row_maximum(score));
    const float factor = expf(maximum - largest), weight = expf(score - largest);
    maximum = largest;
    sum = sum * factor + row_sum(weight);
#pragma unroll
    for (float& value : out.values) value *= factor;
    weights[row * kScoreStride + col] = weight;
    __syncthreads();
    out.add(weights, false, v);
  }
  if (col == 0 && row < rows) {
    arguments.lse[layout.statistic(place.batch, place.head) + place.first + row] =
        maximum + logf(sum);
  }
  T* const to = static_cast<T*>(arguments.out) + layout.out(place.batch, place.head);
  const std::int64_t out_stride = layout.out_stride();
  out.store(1.0f / sum, to + place.first * out_stride, out_stride, rows, layout.head_dim);
}

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

  // Computes p and ds of thread (i, j): query i, key j. `statistic`: offset of sequence and head.
  __device__ __forceinline__ void make_weights(const AttentionBackward& arguments,
                                               std::int64_t statistic, std::int64_t query,
                                               std::int64_t key) const {
    const int row = row_index(), col = col_index();
    const std::int64_t at = query + row;
    float probability = 0.0f, grad = 0.0f;
    if (at < arguments.layout.time && key + col <= at) {
      const float score = arguments.scale * q.dot(row, k, col);
      probability = expf(score - arguments.lse[statistic + at]);
      grad = probability * (dout.dot(row, v, col) - arguments.delta[statistic + at]);
    }
    p[row * kScoreStride + col] = probability;
    ds[row * kScoreStride + col] = grad;
  }
};

template <class T>
__device__ __forceinline__ void load_queries(const GradientTiles& tiles,
                                             const AttentionBackward& arguments,
                                             const AttentionPlace& query) {
  const AttentionLayout& layout = arguments.layout;
  const std::int64_t stride = layout.packed_stride(), rows = layout.time - query.first;
  tiles.q.load(static_cast<const T*>(arguments.qkv) + layout.query(query.batch, query.head) +
                   query.first * stride,
               stride, rows);
  tiles.dout.load(static_cast<const T*>(arguments.dout) + layout.out(query.batch, query.head) +
                      query.first * layout.out_stride(),
                  layout.out_stride(), rows);
}

// key.head: the head of keys and values.
template <class T>
__device__ __forceinline__ void load_keys(const GradientTiles& tiles,
                                          const AttentionBackward& arguments,
                                          const AttentionPlace& key) {
  const AttentionLayout& layout = arguments.layout;
  const std::int64_t stride = layout.packed_stride(), rows = layout.time - key.first;
  const T* const qkv = static_cast<const T*>(arguments.qkv) + key.first * stride;
  tiles.k.load(qkv + layout.key(key.batch, key.head), stride, rows);
  tiles.v.load(qkv + layout.value(key.batch, key.head), stride, rows);
}

// dk and dv of 16 keys: the heads of the group in turn, each with the queries from these keys on.
template <class T>
__global__ void __launch_bounds__(kThreads) plain_key_kernel(AttentionBackward arguments) {
  const AttentionLayout& layout = arguments.layout;
  const AttentionPlace place = attention_place(layout, layout.kv_heads, kSide, false);
  const GradientTiles tiles(dynamic_shared<float>(), layout.head_dim);
  load_keys<T>(tiles, arguments, place);
  OwnedSums dk, dv;
  for (std::int64_t i = 0; i < layout.group(); ++i) {
    const std::int64_t head = place.head * layout.group() + i;
    for (std::int64_t query = place.first; query < layout.time; query += kSide) {
      __syncthreads();  // no thread reads the previous tiles and weights
      load_queries<T>(tiles, arguments, {place.batch, head, query});
      __syncthreads();
      tiles.make_weights(arguments, layout.statistic(place.batch, head), query, place.first);
      __syncthreads();
      dv.add(tiles.p, true, tiles.dout);
      dk.add(tiles.ds, true, tiles.q);
    }
  }
  const std::int64_t stride = layout.packed_stride(), rows = layout.time - place.first;
  T* const to = static_cast<T*>(arguments.dqkv) + place.first * stride;
  dk.store(arguments.scale, to + layout.key(place.batch, place.head), stride, rows,
           layout.head_dim);
  dv.store(1.0f, to + layout.value(place.batch, place.head), stride, rows, layout.head_dim);
}

// dq of 16 queries: the keys up to them, in rising order.
template <class T>
__global__ void __launch_bounds__(kThreads) plain_query_kernel(AttentionBackward arguments) {
  const AttentionLayout& layout = arguments.layout;
  const AttentionPlace place = attention_place(layout, layout.heads, kSide, true);
  const GradientTiles tiles(dynamic_shared<float>(), layout.head_dim);
  load_queries<T>(tiles, arguments, place);
  OwnedSums dq;
  for (std::int64_t key = 0; key <= place.first; key += kSide) {
    __syncthreads();  // no thread reads the previous tiles and weights
    load_keys<T>(tiles, arguments, {place.batch, place.head / layout.group(), key});
    __syncthreads();
    tiles.make_weights(arguments, layout.statistic(place.batch, place.head), place.first, key);
    __syncthreads();
    dq.add(tiles.ds, false, tiles.k);
  }
  const std::int64_t stride = layout.packed_stride();
  T* const to = static_cast<T*>(arguments.dqkv) + layout.query(place.batch, place.head);
  dq.store(arguments.scale, to + place.first * stride, stride, layout.time - place.first,
           layout.head_dim);
}

// Dynamic shared memory of `tiles` tiles and `weights` blocks of weights.
std::size_t shared_bytes(const AttentionLayout& layout, int tiles, int weights) {
  const std::int64_t floats =
      tiles * kSide * (layout.head_dim + 1) + std::int64_t{weights} * kSide * kScoreStride;
  return static_cast<std::size_t>(floats) * sizeof(float);
}

}  // namespace

void plain_forward(StreamHandle stream, DType dtype, const AttentionForward& arguments) {
  const AttentionLayout& layout = arguments.layout;
  with_act_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launch(stream, attention_grid(layout, layout.heads, kSide), dim3(kThreads),
           shared_bytes(layout, 3, 0), plain_forward_kernel<T>, arguments);
  });
}

void plain_backward(StreamHandle stream, DType dtype, const AttentionBackward& arguments) {
  const AttentionLayout& layout = arguments.layout;
  with_act_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launch(stream, attention_grid(layout, layout.kv_heads, kSide), dim3(kThreads),
           shared_bytes(layout, 4, 2), plain_key_kernel<T>, arguments);
    launch(stream, attention_grid(layout, layout.heads, kSide), dim3(kThreads),
           shared_bytes(layout, 4, 2), plain_query_kernel<T>, arguments);
  });
}

}  // namespace sluice::kernels::cuda
