// Attention to keys that come from elsewhere, merged with what was there.
//
// The walk over tiles is that of attention_plain.cu, with two differences. Queries and keys have
// arrays of their own, and unless the part is causal every query sees every key. And results are
// added to fp32 sums. The forward pass makes a softmax of the part's scores, and the block that has
// made it merges it with the outputs and the log-sum-exp that are there:
//
//   lse' = max + log(sum)    merged = log(exp(lse) + exp(lse'))
//   out = exp(lse - merged) out + exp(max - merged) P V, P V not divided by `sum`
//
// The backward pass needs no merge, since lse is that of all keys after all parts:
//
//   p = exp(scale * q k - lse)    ds = p * (dout v - delta)
//   dv += p^T dout    dk += scale * ds^T q    dq += scale * ds k
#include "base/units.hpp"
#include "kernels/cuda/attention_part.hpp"
#include "kernels/cuda/attention_plain_tile.cuh"

namespace sluice::kernels::cuda {
namespace {

void check(const AttentionPart& part) {
  SLUICE_CHECK(part.queries > 0 && part.keys > 0 && part.head_dim > 0);
  SLUICE_CHECK(part.kv_heads > 0 && part.heads > 0 && part.heads % part.kv_heads == 0);
  SLUICE_CHECK(!part.causal || part.queries == part.keys);
  SLUICE_CHECK(part.lse_stride >= part.queries);
  SLUICE_CHECK(is_act_dtype(part.dtype));
  SLUICE_CHECK_MSG(part.head_dim <= kMaxHeadDim, "attention on CUDA needs head_dim <= 256");
}

// Offsets in elements, and the scores that count.
struct PartLayout {
  std::int64_t queries, keys, heads, kv_heads, head_dim;
  std::int64_t lse_stride;
  bool causal;

  __device__ std::int64_t group() const { return heads / kv_heads; }
  __device__ std::int64_t qkv_stride() const { return (heads + 2 * kv_heads) * head_dim; }
  __device__ std::int64_t kv_stride() const { return 2 * kv_heads * head_dim; }
  __device__ std::int64_t out_stride() const { return heads * head_dim; }
  __device__ std::int64_t query(std::int64_t head, std::int64_t row) const {
    return row * qkv_stride() + head * head_dim;
  }
  __device__ std::int64_t key(std::int64_t kv_head, std::int64_t row) const {
    return row * kv_stride() + kv_head * head_dim;
  }
  __device__ std::int64_t value(std::int64_t kv_head, std::int64_t row) const {
    return key(kv_heads + kv_head, row);
  }
  __device__ std::int64_t out(std::int64_t head, std::int64_t row) const {
    return row * out_stride() + head * head_dim;
  }
  // The scores of the tile with these first rows.
  __device__ VisibleScores visible(std::int64_t query, std::int64_t key) const {
    return {queries - query, keys - key, causal ? query - key : std::int64_t{kSide}};
  }
  // Keys that the 16 queries from `query` on meet, and the first query that meets a tile of keys.
  __device__ std::int64_t key_end(std::int64_t query) const {
    return causal && query + kSide < keys ? query + kSide : keys;
  }
  __device__ std::int64_t first_query(std::int64_t key) const { return causal ? key : 0; }
};

struct PartForward {
  PartLayout layout;
  float scale;  // factor of scores: 1 / sqrt(head_dim)
  const void *qkv, *kv;
  bool first;
  float *out, *lse;
};

struct PartBackward {
  PartLayout layout;
  float scale;
  const void *dout, *qkv, *kv;
  const float *lse, *delta;
  float *dq, *dkv;
};

PartLayout layout_of(const AttentionPart& part) {
  return {part.queries,  part.keys,       part.heads, part.kv_heads,
          part.head_dim, part.lse_stride, part.causal};
}

// The tile of a block: 16 rows of one head. Consecutive blocks have the same rows of neighbouring
// heads.
struct PartPlace {
  std::int64_t head, first;
};
__device__ __forceinline__ PartPlace part_place(std::int64_t heads) {
  return {blockIdx.x % heads, blockIdx.x / heads * kSide};
}
dim3 part_grid(std::int64_t heads, std::int64_t rows) {
  const std::int64_t blocks = (rows + kSide - 1) / kSide * heads;
  SLUICE_CHECK(blocks <= INT32_MAX);
  return dim3(static_cast<unsigned>(blocks));
}

// The factors of a row's old output and of its new one, which is not divided by its sum yet.
struct PartMerge {
  float kept, factor, lse;
};
__device__ __forceinline__ PartMerge merge_statistics(bool first, float before, float maximum,
                                                      float sum) {
  const float own = maximum + logf(sum);
  // There is nothing yet, and what lies in the arrays may be NaN.
  if (first) return {0.0f, 1.0f / sum, own};
  const float larger = before > own ? before : own;  // NaN if `own` is
  const float merged = larger + logf(expf(before - larger) + expf(own - larger));
  return {expf(before - merged), expf(maximum - merged), merged};
}

// A block merges the outputs of 16 queries, with a running maximum and sum per row.
template <class T>
__global__ void __launch_bounds__(kTileThreads) part_forward_kernel(PartForward arguments) {
  __shared__ float weights[kSide * kScoreStride];
  const PartLayout& layout = arguments.layout;
  const PartPlace place = part_place(layout.heads);
  const std::int64_t kv_head = place.head / layout.group();
  const std::int64_t tile_floats = Tile::floats(layout.head_dim);
  float* const shared = dynamic_shared<float>();
  const Tile q{shared, layout.head_dim}, k{shared + tile_floats, layout.head_dim};
  const Tile v{shared + 2 * tile_floats, layout.head_dim};
  const T* const kv = static_cast<const T*>(arguments.kv);
  const std::int64_t rows = layout.queries - place.first;
  q.load(static_cast<const T*>(arguments.qkv) + layout.query(place.head, place.first),
         layout.qkv_stride(), rows);

  const int row = row_index(), col = col_index();
  float* const lse = arguments.lse + place.head * layout.lse_stride + place.first + row;
  // All lanes of a row read it before one of them writes: barriers of the walk lie between.
  const float before = arguments.first || row >= rows ? 0.0f : *lse;
  OwnedSums out;
  float maximum = -INFINITY, sum = 0.0f;
  for (std::int64_t key = 0; key < layout.key_end(place.first); key += kSide) {
    __syncthreads();  // no thread reads the previous tiles
    k.load(kv + layout.key(kv_head, key), layout.kv_stride(), layout.keys - key);
    v.load(kv + layout.value(kv_head, key), layout.kv_stride(), layout.keys - key);
    __syncthreads();
    // A row that does not exist has the scores of zeros, and is not stored.
    VisibleScores visible = layout.visible(place.first, key);
    visible.rows = kSide;
    const float score = visible.holds(row, col) ? arguments.scale * q.dot(row, k, col) : -INFINITY;
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
  const PartMerge merged = merge_statistics(arguments.first, before, maximum, sum);
  if (col == 0 && row < rows) *lse = merged.lse;
  out.merge(arguments.first, merged.kept, merged.factor,
            arguments.out + layout.out(place.head, place.first), layout.out_stride(), rows,
            layout.head_dim);
}

template <class T>
__device__ __forceinline__ void load_queries(const GradientTiles& tiles,
                                             const PartBackward& arguments, std::int64_t head,
                                             std::int64_t query) {
  const PartLayout& layout = arguments.layout;
  const std::int64_t rows = layout.queries - query;
  tiles.q.load(static_cast<const T*>(arguments.qkv) + layout.query(head, query),
               layout.qkv_stride(), rows);
  tiles.dout.load(static_cast<const T*>(arguments.dout) + layout.out(head, query),
                  layout.out_stride(), rows);
}

template <class T>
__device__ __forceinline__ void load_keys(const GradientTiles& tiles, const PartBackward& arguments,
                                          std::int64_t kv_head, std::int64_t key) {
  const PartLayout& layout = arguments.layout;
  const T* const kv = static_cast<const T*>(arguments.kv);
  tiles.k.load(kv + layout.key(kv_head, key), layout.kv_stride(), layout.keys - key);
  tiles.v.load(kv + layout.value(kv_head, key), layout.kv_stride(), layout.keys - key);
}

// lse has a stride between heads of its own; delta is as dense as the part's queries.
__device__ __forceinline__ void make_weights(const GradientTiles& tiles,
                                             const PartBackward& arguments, std::int64_t head,
                                             std::int64_t query, std::int64_t key) {
  const PartLayout& layout = arguments.layout;
  tiles.make_weights(arguments.scale, arguments.lse + head * layout.lse_stride + query,
                     arguments.delta + head * layout.queries + query, layout.visible(query, key));
}

// Adds to dk and dv of 16 keys: the heads of the group in turn, each with the queries that see
// them.
template <class T>
__global__ void __launch_bounds__(kTileThreads) part_key_kernel(PartBackward arguments) {
  const PartLayout& layout = arguments.layout;
  const PartPlace place = part_place(layout.kv_heads);
  const GradientTiles tiles(dynamic_shared<float>(), layout.head_dim);
  load_keys<T>(tiles, arguments, place.head, place.first);
  OwnedSums dk, dv;
  for (std::int64_t i = 0; i < layout.group(); ++i) {
    const std::int64_t head = place.head * layout.group() + i;
    for (std::int64_t query = layout.first_query(place.first); query < layout.queries;
         query += kSide) {
      __syncthreads();  // no thread reads the previous tiles and weights
      load_queries<T>(tiles, arguments, head, query);
      __syncthreads();
      make_weights(tiles, arguments, head, query, place.first);
      __syncthreads();
      dv.add(tiles.p, true, tiles.dout);
      dk.add(tiles.ds, true, tiles.q);
    }
  }
  const std::int64_t stride = layout.kv_stride(), rows = layout.keys - place.first;
  dk.merge(false, 1.0f, arguments.scale, arguments.dkv + layout.key(place.head, place.first),
           stride, rows, layout.head_dim);
  dv.merge(false, 1.0f, 1.0f, arguments.dkv + layout.value(place.head, place.first), stride, rows,
           layout.head_dim);
}

// Adds to dq of 16 queries: the keys that they see, in rising order.
template <class T>
__global__ void __launch_bounds__(kTileThreads) part_query_kernel(PartBackward arguments) {
  const PartLayout& layout = arguments.layout;
  const PartPlace place = part_place(layout.heads);
  const GradientTiles tiles(dynamic_shared<float>(), layout.head_dim);
  load_queries<T>(tiles, arguments, place.head, place.first);
  OwnedSums dq;
  for (std::int64_t key = 0; key < layout.key_end(place.first); key += kSide) {
    __syncthreads();  // no thread reads the previous tiles and weights
    load_keys<T>(tiles, arguments, place.head / layout.group(), key);
    __syncthreads();
    make_weights(tiles, arguments, place.head, place.first, key);
    __syncthreads();
    dq.add(tiles.ds, false, tiles.k);
  }
  dq.merge(false, 1.0f, arguments.scale, arguments.dq + layout.out(place.head, place.first),
           layout.out_stride(), layout.queries - place.first, layout.head_dim);
}

}  // namespace

std::uint64_t attention_part_workspace_bytes(const AttentionPart& part) {
  check(part);
  const auto rows = static_cast<std::uint64_t>(part.heads * part.queries);
  return round_up(rows * sizeof(float), kTensorAlignmentBytes);
}

void attention_part_forward(StreamHandle stream, const AttentionPart& part, const void* qkv,
                            const void* kv, bool first, float* out, float* lse) {
  check(part);
  const PartForward arguments{
      layout_of(part), attention_scale(part.head_dim), qkv, kv, first, out, lse};
  with_act_type(part.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launch(stream, part_grid(part.heads, part.queries), dim3(kTileThreads),
           plain_tile_bytes(part.head_dim, 3, 0), part_forward_kernel<T>, arguments);
  });
}

void attention_part_backward(StreamHandle stream, const AttentionPart& part, const void* dout,
                             const void* qkv, const void* kv, const void* out, const float* lse,
                             float* dq, float* dkv, void* workspace) {
  check(part);
  auto* const delta = static_cast<float*>(workspace);
  launch_delta(stream, {1, part.queries, part.heads, part.kv_heads, part.head_dim, part.dtype},
               dout, out, delta);
  const PartBackward arguments{
      layout_of(part), attention_scale(part.head_dim), dout, qkv, kv, lse, delta, dq, dkv};
  with_act_type(part.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const std::size_t shared_bytes = plain_tile_bytes(part.head_dim, 4, 2);
    launch(stream, part_grid(part.kv_heads, part.keys), dim3(kTileThreads), shared_bytes,
           part_key_kernel<T>, arguments);
    launch(stream, part_grid(part.heads, part.queries), dim3(kTileThreads), shared_bytes,
           part_query_kernel<T>, arguments);
  });
}

}  // namespace sluice::kernels::cuda
