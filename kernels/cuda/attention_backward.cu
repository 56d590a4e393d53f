// Attention's backward pass on tensor cores: two kernels of the same shape. A block owns a tile of
// keys (or queries) and walks over the queries (keys) that meet it, 32 at a time, in rising order.
// The scores of its rows stay in registers between the products.
//
//   p = exp(scale * q k - lse)    dp = dout v    ds = p * (dp - delta)
//   dv = p^T dout    dk = scale * ds^T q    dq = scale * ds k
//
// Each of dk, dv and dq has one owner and one order of summation, so there are no atomics and every
// run has the same bits. The price is that both kernels compute p and dp. Moving tiles are double
// buffered with asynchronous copies where shared memory allows it.
#include "kernels/cuda/attention_tile.cuh"

namespace sluice::kernels::cuda {
namespace {

constexpr int kSteps = 32;  // rows of the moving tiles
constexpr int kStepTiles = kSteps / 8;

// Shared memory holds two stationary and two moving tiles. Registers limit the row tiles: a warp of
// the key kernel sums two results of kRowTiles * 16 rows and kCols columns. 256 columns are summed
// in halves, by separate blocks; without a second stage they fit the 99 KiB of a block on sm_120.
template <int kDim>
struct BackwardTiles {
  static constexpr int kRowTiles = kDim <= 64 ? 2 : 1;
  static constexpr int kStages = kDim <= 128 ? 2 : 1;
  static constexpr int kCols = kDim <= 128 ? kDim : 128;
  static constexpr int kParts = kDim / kCols;  // blocks per tile of keys
  static constexpr int kWarpRows = 16 * kRowTiles;
  static constexpr int kRows = kWarpRows * kAttentionWarps;
  static constexpr int kMovingElems = tile_elems(kSteps, kDim);
  static constexpr std::size_t kSharedBytes =
      2 * (2 * tile_elems(kRows, kDim) + 2 * kStages * kMovingElems);
};

// Rows of one head of q, k, v or dout, starting with the first of the sequence.
template <class T>
struct HeadRows {
  const T* data;
  std::int64_t stride;
};

template <int kRows, int kDim, class T>
__device__ __forceinline__ void load_rows(T* tile, const AttentionLayout& layout,
                                          const HeadRows<T>& rows, std::int64_t first) {
  load_tile<kRows, kDim, kAttentionThreads>(tile, rows.data + first * rows.stride, rows.stride,
                                            layout.time - first, layout.head_dim);
}

// Streams pairs of moving tiles through shared memory, `kStages` of them in flight. load(tiles,
// step) starts the copies of a step into two adjacent tiles; use(tiles, step) is called when they
// have arrived.
template <int kDim, class T, class Load, class Use>
__device__ __forceinline__ void walk(T* moving, int steps, const Load& load, const Use& use) {
  using Tiles = BackwardTiles<kDim>;
  constexpr int kAhead = Tiles::kStages - 1;
  const auto stage_of = [&](int step) {
    return moving + step % Tiles::kStages * 2 * Tiles::kMovingElems;
  };
  if (kAhead > 0) load(moving, 0);
  copy_async_commit();  // together with the caller's first copies
  for (int step = 0; step < steps; ++step) {
    if (step + kAhead < steps) load(stage_of(step + kAhead), step + kAhead);
    copy_async_commit();
    copy_async_wait<kAhead>();
    __syncthreads();
    use(stage_of(step), step);
    __syncthreads();  // all warps are done before the stage is refilled
  }
}

// For the keys of a warp and 32 queries: `p` becomes p^T, and `ds` (dp^T on entry) becomes ds^T.
// `key`, `query`: first row and first column.
template <int kRowTiles>
__device__ __forceinline__ void softmax_gradient_by_key(Sums<kRowTiles, kStepTiles>& p,
                                                        Sums<kRowTiles, kStepTiles>& ds,
                                                        const float* lse, const float* delta,
                                                        std::int64_t time, std::int64_t query,
                                                        std::int64_t key, float scale2) {
  query += lane_index() % 4 * 2;
  key += lane_index() / 4;
#pragma unroll
  for (int i = 0; i < kStepTiles * 2; ++i) {
    const int col = i / 2, side = i % 2;
    const std::int64_t at = query + col * 8 + side;
    const bool exists = at < time;
    const float shift = exists ? lse[at] * kLog2E : 0.0f, centre = exists ? delta[at] : 0.0f;
#pragma unroll
    for (int j = 0; j < kRowTiles * 2; ++j) {
      const int tile = j / 2, element = j % 2 * 2 + side;
      float& score = p[tile][col][element];
      float& grad = ds[tile][col][element];
      const bool visible = exists && key + tile * 16 + j % 2 * 8 <= at;
      score = visible ? fast_exp2(__fmaf_rn(score, scale2, -shift)) : 0.0f;
      grad = visible ? score * (grad - centre) : 0.0f;
    }
  }
}

// dk and dv of one tile of keys: a block per tile, kv_head and sequence (and half of 256 columns).
template <class T, int kDim>
__global__ void __launch_bounds__(kAttentionThreads)
    key_value_gradient_kernel(AttentionBackward arguments) {
  using Tiles = BackwardTiles<kDim>;
  const AttentionLayout& layout = arguments.layout;
  const AttentionPlace place = attention_place(layout, layout.kv_heads, Tiles::kRows, false);
  const int first_col = static_cast<int>(blockIdx.y) * Tiles::kCols;
  const std::int64_t stride = layout.packed_stride();
  const T* const qkv = static_cast<const T*>(arguments.qkv);
  T* const k = dynamic_shared<T>();
  T* const v = k + tile_elems(Tiles::kRows, kDim);
  T* const moving = v + tile_elems(Tiles::kRows, kDim);
  const HeadRows<T> keys{qkv + layout.key(place.batch, place.head), stride};
  const HeadRows<T> values{qkv + layout.value(place.batch, place.head), stride};
  load_rows<Tiles::kRows, kDim>(k, layout, keys, place.first);
  load_rows<Tiles::kRows, kDim>(v, layout, values, place.first);

  // The heads of the group in turn; each with the queries from the first key on.
  const int first_step = static_cast<int>(place.first / kSteps);
  const int head_steps = static_cast<int>((layout.time + kSteps - 1) / kSteps) - first_step;
  const auto head_of = [&](int step) { return place.head * layout.group() + step / head_steps; };
  const auto query_of = [&](int step) {
    return std::int64_t{first_step + step % head_steps} * kSteps;
  };
  const auto load = [&](T* tiles, int step) {
    const std::int64_t head = head_of(step);
    const HeadRows<T> q{qkv + layout.query(place.batch, head), stride};
    const HeadRows<T> dout{static_cast<const T*>(arguments.dout) + layout.out(place.batch, head),
                           layout.out_stride()};
    load_rows<kSteps, kDim>(tiles, layout, q, query_of(step));
    load_rows<kSteps, kDim>(tiles + Tiles::kMovingElems, layout, dout, query_of(step));
  };
  const int warp_row = warp_index() * Tiles::kWarpRows;
  const std::int64_t key = place.first + warp_row;
  Sums<Tiles::kRowTiles, Tiles::kCols / 8> dk = {}, dv = {};
  const int steps = static_cast<int>(layout.group()) * head_steps;
  walk<kDim>(moving, steps, load, [&](const T* q, int step) {
    const std::int64_t query = query_of(step);
    if (query + kSteps <= key) return;  // all keys of the warp come later
    const T* const dout = q + Tiles::kMovingElems;
    const std::int64_t statistic = layout.statistic(place.batch, head_of(step));
    Sums<Tiles::kRowTiles, kStepTiles> p, ds;
    multiply_scores<kDim>(p, k, warp_row, q);
    multiply_scores<kDim>(ds, v, warp_row, dout);
    softmax_gradient_by_key<Tiles::kRowTiles>(p, ds, arguments.lse + statistic,
                                              arguments.delta + statistic, layout.time, query, key,
                                              arguments.scale * kLog2E);
    add_weighted_rows<kDim>(dv, p, dout, first_col);
    add_weighted_rows<kDim>(dk, ds, q, first_col);
  });

  T* const to = static_cast<T*>(arguments.dqkv) + key * stride + first_col;
  const std::int64_t rows = layout.time - key, cols = layout.head_dim - first_col;
  float scale[Tiles::kRowTiles][2], one[Tiles::kRowTiles][2];
  for (int i = 0; i < Tiles::kRowTiles * 2; ++i) {
    scale[i / 2][i % 2] = arguments.scale;
    one[i / 2][i % 2] = 1.0f;
  }
  store_rows<kDim, T>(dk, scale, k + warp_row * tile_stride(kDim),
                      {to + layout.key(place.batch, place.head), stride, rows, cols});
  store_rows<kDim, T>(dv, one, v + warp_row * tile_stride(kDim),
                      {to + layout.value(place.batch, place.head), stride, rows, cols});
}

// The statistics of a lane's two rows in each row tile.
template <int kRowTiles>
struct QueryStatistics {
  float shift[kRowTiles][2], delta[kRowTiles][2];

  __device__ QueryStatistics(const float* lse, const float* deltas, std::int64_t rows) {
    for (int i = 0; i < kRowTiles * 2; ++i) {
      const int row = i / 2 * 16 + i % 2 * 8 + lane_index() / 4;
      shift[i / 2][i % 2] = row < rows ? lse[row] * kLog2E : 0.0f;
      delta[i / 2][i % 2] = row < rows ? deltas[row] : 0.0f;
    }
  }
};

// Like softmax_gradient_by_key, with queries as rows and keys as columns. p is scratch.
template <int kRowTiles>
__device__ __forceinline__ void softmax_gradient_by_query(
    Sums<kRowTiles, kStepTiles>& p, Sums<kRowTiles, kStepTiles>& ds,
    const QueryStatistics<kRowTiles>& statistics, std::int64_t query, std::int64_t key,
    float scale2) {
  const auto ahead = static_cast<int>(key - query) + lane_index() % 4 * 2 - lane_index() / 4;
#pragma unroll
  for (int i = 0; i < kRowTiles * kStepTiles * 4; ++i) {
    const int tile = i / 4 / kStepTiles, col = i / 4 % kStepTiles, element = i % 4;
    const int half = element / 2;
    const float shift = statistics.shift[tile][half], centre = statistics.delta[tile][half];
    const float probability = fast_exp2(__fmaf_rn(p[tile][col][element], scale2, -shift));
    const bool visible = ahead + col * 8 + element % 2 <= tile * 16 + half * 8;
    float& grad = ds[tile][col][element];
    grad = visible ? probability * (grad - centre) : 0.0f;
  }
}

// dq of one tile of queries: a block per tile, head and sequence.
template <class T, int kDim>
__global__ void __launch_bounds__(kAttentionThreads)
    query_gradient_kernel(AttentionBackward arguments) {
  using Tiles = BackwardTiles<kDim>;
  const AttentionLayout& layout = arguments.layout;
  const AttentionPlace place = attention_place(layout, layout.heads, Tiles::kRows, true);
  const std::int64_t stride = layout.packed_stride(), kv_head = place.head / layout.group();
  const T* const qkv = static_cast<const T*>(arguments.qkv);
  const HeadRows<T> queries{qkv + layout.query(place.batch, place.head), stride};
  const HeadRows<T> douts{
      static_cast<const T*>(arguments.dout) + layout.out(place.batch, place.head),
      layout.out_stride()};
  const HeadRows<T> keys{qkv + layout.key(place.batch, kv_head), stride};
  const HeadRows<T> values{qkv + layout.value(place.batch, kv_head), stride};
  T* const q = dynamic_shared<T>();
  T* const dout = q + tile_elems(Tiles::kRows, kDim);
  T* const moving = dout + tile_elems(Tiles::kRows, kDim);
  load_rows<Tiles::kRows, kDim>(q, layout, queries, place.first);
  load_rows<Tiles::kRows, kDim>(dout, layout, douts, place.first);

  const int warp_row = warp_index() * Tiles::kWarpRows;
  const std::int64_t query = place.first + warp_row, rows = layout.time - query;
  const std::int64_t statistic = layout.statistic(place.batch, place.head) + query;
  const QueryStatistics<Tiles::kRowTiles> statistics(arguments.lse + statistic,
                                                     arguments.delta + statistic, rows);
  const std::int64_t end = place.first + Tiles::kRows;
  const std::int64_t visible = end < layout.time ? end : layout.time;
  const auto load = [&](T* tiles, int step) {
    load_rows<kSteps, kDim>(tiles, layout, keys, std::int64_t{step} * kSteps);
    load_rows<kSteps, kDim>(tiles + Tiles::kMovingElems, layout, values,
                            std::int64_t{step} * kSteps);
  };
  Sums<Tiles::kRowTiles, kDim / 8> dq = {};
  const int steps = static_cast<int>((visible + kSteps - 1) / kSteps);
  walk<kDim>(moving, steps, load, [&](const T* k, int step) {
    const std::int64_t key = std::int64_t{step} * kSteps;
    if (key >= query + Tiles::kWarpRows) return;  // later than all queries of the warp
    Sums<Tiles::kRowTiles, kStepTiles> p, ds;
    multiply_scores<kDim>(p, q, warp_row, k);
    multiply_scores<kDim>(ds, dout, warp_row, k + Tiles::kMovingElems);
    softmax_gradient_by_query<Tiles::kRowTiles>(p, ds, statistics, query, key,
                                                arguments.scale * kLog2E);
    add_weighted_rows<kDim>(dq, ds, k, 0);
  });

  float scale[Tiles::kRowTiles][2];
  for (int i = 0; i < Tiles::kRowTiles * 2; ++i) scale[i / 2][i % 2] = arguments.scale;
  T* const to = static_cast<T*>(arguments.dqkv) + layout.query(place.batch, place.head);
  store_rows<kDim, T>(dq, scale, q + warp_row * tile_stride(kDim),
                      {to + query * stride, stride, rows, layout.head_dim});
}

}  // namespace

void tensor_core_backward(StreamHandle stream, DType dtype, const AttentionBackward& arguments) {
  const AttentionLayout& layout = arguments.layout;
  with_narrow_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    with_padded_dim(layout.head_dim, [&](auto dim) {
      constexpr int kDim = decltype(dim)::value;
      using Tiles = BackwardTiles<kDim>;
      dim3 grid = attention_grid(layout, layout.kv_heads, Tiles::kRows);
      grid.y = Tiles::kParts;
      launch(stream, grid, dim3(kAttentionThreads), Tiles::kSharedBytes,
             key_value_gradient_kernel<T, kDim>, arguments);
      launch(stream, attention_grid(layout, layout.heads, Tiles::kRows), dim3(kAttentionThreads),
             Tiles::kSharedBytes, query_gradient_kernel<T, kDim>, arguments);
    });
  });
}

}  // namespace sluice::kernels::cuda
