// Attention in fp32 arithmetic without tensor cores: for fp32 arrays, and for head sizes that the
// tensor-core kernels do not support.
//
// The walk over tiles is that of attention_forward.cu and attention_backward.cu, with tiles of
// 16 x 16 scores and 256 threads (attention_plain_tile.cuh).
#include "kernels/cuda/attention_plain_tile.cuh"

namespace sluice::kernels::cuda {
namespace {

// A block computes the outputs of 16 queries, with a running maximum and sum per row.
template <class T>
__global__ void __launch_bounds__(kTileThreads) plain_forward_kernel(AttentionForward arguments) {
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
__global__ void __launch_bounds__(kTileThreads) plain_key_kernel(AttentionBackward arguments) {
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
      const std::int64_t statistic = layout.statistic(place.batch, head) + query;
      tiles.make_weights(arguments.scale, arguments.lse + statistic, arguments.delta + statistic,
                         {layout.time - query, kSide, query - place.first});
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
__global__ void __launch_bounds__(kTileThreads) plain_query_kernel(AttentionBackward arguments) {
  const AttentionLayout& layout = arguments.layout;
  const AttentionPlace place = attention_place(layout, layout.heads, kSide, true);
  const GradientTiles tiles(dynamic_shared<float>(), layout.head_dim);
  load_queries<T>(tiles, arguments, place);
  OwnedSums dq;
  for (std::int64_t key = 0; key <= place.first; key += kSide) {
    __syncthreads();  // no thread reads the previous tiles and weights
    load_keys<T>(tiles, arguments, {place.batch, place.head / layout.group(), key});
    __syncthreads();
    const std::int64_t statistic = layout.statistic(place.batch, place.head) + place.first;
    tiles.make_weights(arguments.scale, arguments.lse + statistic, arguments.delta + statistic,
                       {layout.time - place.first, kSide, place.first - key});
    __syncthreads();
    dq.add(tiles.ds, false, tiles.k);
  }
  const std::int64_t stride = layout.packed_stride();
  T* const to = static_cast<T*>(arguments.dqkv) + layout.query(place.batch, place.head);
  dq.store(arguments.scale, to + place.first * stride, stride, layout.time - place.first,
           layout.head_dim);
}

}  // namespace

void plain_forward(StreamHandle stream, DType dtype, const AttentionForward& arguments) {
  const AttentionLayout& layout = arguments.layout;
  with_act_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launch(stream, attention_grid(layout, layout.heads, kSide), dim3(kTileThreads),
           plain_tile_bytes(layout.head_dim, 3, 0), plain_forward_kernel<T>, arguments);
  });
}

void plain_backward(StreamHandle stream, DType dtype, const AttentionBackward& arguments) {
  const AttentionLayout& layout = arguments.layout;
  with_act_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launch(stream, attention_grid(layout, layout.kv_heads, kSide), dim3(kTileThreads),
           plain_tile_bytes(layout.head_dim, 4, 2), plain_key_kernel<T>, arguments);
    launch(stream, attention_grid(layout, layout.heads, kSide), dim3(kTileThreads),
           plain_tile_bytes(layout.head_dim, 4, 2), plain_query_kernel<T>, arguments);
  });
}

}  // namespace sluice::kernels::cuda
