// Embedding lookups and their gradient.
//
// The gradient of a table row is a sum over all positions with that token. Rows are first sorted by
// token; then one block owns a table row and adds its gradient rows in ascending order. No sum has
// two owners, so there are no atomic additions of floats, and the bits equal the host's. The sort
// uses atomics only for the order within a token, which a later step makes deterministic.
#include "kernels/cuda/embedding.hpp"
#include "kernels/cuda/numeric.cuh"
#include "kernels/cuda/reduce.cuh"

namespace sluice::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kGatherThreads = 128;
constexpr int kScanThreads = 1024;
constexpr int kMaxSumThreads = 512;
// Number of gradient rows in flight at once; they are still added one by one.
constexpr int kRowsAtOnce = 8;

// The place of a token in the part of a table that has the tokens of a range. Negative: none.
__device__ __forceinline__ std::int64_t place_in(const TokenRange& range, std::int32_t token) {
  const std::int64_t place = token - range.first;
  return place < range.count ? place : -1;
}

// out = table row (+ position row), a block per row of the output. A row that the table has not
// counts as zero.
template <class T, int kElems>
__global__ void __launch_bounds__(kGatherThreads)
    gather_kernel(const std::int32_t* tokens, TokenRange range, const T* table, const T* positions,
                  T* out, std::int64_t rows, std::int64_t time, std::int64_t hidden) {
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const std::int64_t place = place_in(range, tokens[row]);
    const T* const from = place < 0 ? nullptr : table + place * hidden;
    const T* const position = positions == nullptr ? nullptr : positions + row % time * hidden;
    for (std::int64_t c = threadIdx.x * kElems; c < hidden;
         c += static_cast<std::int64_t>(blockDim.x) * kElems) {
      Pack<T, kElems> values{};
      if (from != nullptr) values = load_pack<T, kElems>(from + c);
      if (from == nullptr && position != nullptr) {
        values = load_pack<T, kElems>(position + c);  // as it is: a sum with zero loses -0
      } else if (position != nullptr) {
        const Pack<T, kElems> more = load_pack<T, kElems>(position + c);
#pragma unroll
        for (int e = 0; e < kElems; ++e) {
          values.values[e] =
              from_float<T>(__fadd_rn(load_float(values.values[e]), load_float(more.values[e])));
        }
      }
      store_pack(out + row * hidden + c, values);
    }
  }
}

// --- the backward pass: rows sorted by token, in row order within a token
//
// A counting sort: it counts tokens, sums the counts up, and gives each row a place in its token's
// segment. Atomics make that place arbitrary. A row's final place is therefore the number of
// smaller rows in its segment, so all results are the same in every run. This last step is
// quadratic in a segment: 4,096 times one token are 16 M comparisons; 64 K rows of one token are 4
// G, below a millisecond.

__global__ void __launch_bounds__(kThreads) clear_kernel(std::int32_t* counts, std::int64_t vocab) {
  for (std::int64_t i = grid_thread(); i < vocab; i += grid_threads()) counts[i] = 0;
}

__global__ void __launch_bounds__(kThreads)
    count_kernel(const std::int32_t* tokens, std::int64_t rows, TokenRange range,
                 std::int32_t* counts) {
  for (std::int64_t row = grid_thread(); row < rows; row += grid_threads()) {
    const std::int32_t token = tokens[row];
    if (token < 0 || token >= range.vocab) __trap();
    const std::int64_t place = place_in(range, token);
    if (place >= 0) atomicAdd(counts + place, 1);
  }
}

// Turns counts[t] into the first place of token t and copies it to cursors[t]. One block: each
// thread sums a run of tokens, the runs' sums are scanned, and each thread walks its run again.
__global__ void __launch_bounds__(kScanThreads)
    start_kernel(std::int32_t* counts, std::int32_t* cursors, std::int64_t vocab) {
  __shared__ std::int32_t sums[kScanThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t run = (vocab + kScanThreads - 1) / kScanThreads;
  const std::int64_t first = thread * run;
  const std::int64_t last = std::min(vocab, first + run);
  std::int32_t sum = 0;
  for (std::int64_t t = first; t < last; ++t) sum += counts[t];
  sums[thread] = sum;
  __syncthreads();
  for (int distance = 1; distance < kScanThreads; distance *= 2) {
    const std::int32_t before = thread >= distance ? sums[thread - distance] : 0;
    __syncthreads();
    sums[thread] += before;
    __syncthreads();
  }
  std::int32_t start = sums[thread] - sum;
  for (std::int64_t t = first; t < last; ++t) {
    const std::int32_t count = counts[t];
    counts[t] = cursors[t] = start;
    start += count;
  }
}

// Puts each row at an arbitrary place of its token's segment.
__global__ void __launch_bounds__(kThreads)
    place_kernel(const std::int32_t* tokens, std::int64_t rows, TokenRange range,
                 std::int32_t* cursors, std::int32_t* placed) {
  for (std::int64_t row = grid_thread(); row < rows; row += grid_threads()) {
    const std::int64_t place = place_in(range, tokens[row]);
    if (place >= 0) placed[atomicAdd(cursors + place, 1)] = static_cast<std::int32_t>(row);
  }
}

// Ranks the rows within a segment. After place_kernel a token's cursor is the end of its segment,
// and that of the last token the number of rows whose tokens the table has.
__global__ void __launch_bounds__(kThreads)
    rank_kernel(const std::int32_t* tokens, TokenRange range, const std::int32_t* starts,
                const std::int32_t* ends, const std::int32_t* placed, std::int32_t* order) {
  const std::int64_t rows = ends[range.count - 1];
  for (std::int64_t place = grid_thread(); place < rows; place += grid_threads()) {
    const std::int32_t row = placed[place];
    const std::int64_t token = place_in(range, tokens[row]);
    std::int32_t rank = starts[token];
    for (std::int32_t other = starts[token]; other < ends[token]; ++other) {
      rank += placed[other] < row ? 1 : 0;
    }
    order[rank] = row;
  }
}

// The gradient rows that are added to row r of a table, ascending.
struct RowsOfToken {
  const std::int32_t* starts;
  const std::int32_t* ends;
  const std::int32_t* order;

  __device__ __forceinline__ std::int64_t count(std::int64_t r) const {
    return ends[r] - starts[r];
  }
  __device__ __forceinline__ std::int64_t row(std::int64_t r, std::int64_t i) const {
    return order[starts[r] + i];
  }
};
struct RowsOfPosition {
  std::int64_t rows, time;

  __device__ __forceinline__ std::int64_t count(std::int64_t r) const {
    return r < time && r < rows ? (rows - r + time - 1) / time : 0;
  }
  __device__ __forceinline__ std::int64_t row(std::int64_t r, std::int64_t i) const {
    return r + i * time;
  }
};

template <class T, int kElems>
__device__ __forceinline__ void add_pack(float (&sums)[kElems], const Pack<T, kElems>& pack) {
#pragma unroll
  for (int e = 0; e < kElems; ++e) sums[e] = __fadd_rn(sums[e], load_float(pack.values[e]));
}

// table[r, :] = sum of dout over the rows of r, for every r < table_rows; a block per table row.
template <class T, int kElems, class Rows>
__global__ void __launch_bounds__(kMaxSumThreads)
    sum_rows_kernel(const T* dout, Rows rows, T* table, std::int64_t table_rows,
                    std::int64_t hidden) {
  for (std::int64_t r = blockIdx.x; r < table_rows; r += gridDim.x) {
    const std::int64_t count = rows.count(r);
    for (std::int64_t c = threadIdx.x * kElems; c < hidden;
         c += static_cast<std::int64_t>(blockDim.x) * kElems) {
      float sums[kElems] = {};
      std::int64_t i = 0;
      // Groups of eight loads hide the latency of scattered rows.
      for (; i + kRowsAtOnce <= count; i += kRowsAtOnce) {
        Pack<T, kElems> packs[kRowsAtOnce];
#pragma unroll
        for (int k = 0; k < kRowsAtOnce; ++k) {
          packs[k] = load_pack<T, kElems>(dout + rows.row(r, i + k) * hidden + c);
        }
#pragma unroll
        for (int k = 0; k < kRowsAtOnce; ++k) add_pack(sums, packs[k]);
      }
      for (; i < count; ++i) {
        add_pack(sums, load_pack<T, kElems>(dout + rows.row(r, i) * hidden + c));
      }
      Pack<T, kElems> out;
#pragma unroll
      for (int e = 0; e < kElems; ++e) out.values[e] = from_float<T>(sums[e]);
      store_pack(table + r * hidden + c, out);
    }
  }
}

// Columns per thread (8 bytes of a 16-bit dtype). 16-byte accesses would leave fewer threads per
// row, and one block sums all rows of a very frequent token.
constexpr int kSumElems = 4;

template <class T, class Rows>
void sum_into_table(StreamHandle stream, const void* dout, const Rows& rows, void* table,
                    std::int64_t table_rows, std::int64_t hidden) {
  if (table_rows <= 0 || hidden <= 0) return;
  const bool aligned = all_aligned_to_16(dout, table) && hidden % kSumElems == 0;
  const std::int64_t packs = aligned ? hidden / kSumElems : hidden;
  const std::int64_t warps = (packs + kWarpSize - 1) / kWarpSize;
  const auto threads = std::min<std::int64_t>(warps * kWarpSize, kMaxSumThreads);
  launch(stream, static_cast<unsigned>(std::min(table_rows, kMaxGridX)),
         static_cast<unsigned>(threads), 0,
         aligned ? &sum_rows_kernel<T, kSumElems, Rows> : &sum_rows_kernel<T, 1, Rows>,
         static_cast<const T*>(dout), rows, static_cast<T*>(table), table_rows, hidden);
}

// The workspace has starts and cursors (then ends), [range.count] each, and placed and order,
// [rows] each; all int32.
RowsOfToken sort_rows(StreamHandle stream, const std::int32_t* tokens, std::int64_t rows,
                      const TokenRange& range, void* workspace) {
  auto* const starts = static_cast<std::int32_t*>(workspace);
  std::int32_t* const cursors = starts + range.count;
  std::int32_t* const placed = cursors + range.count;
  std::int32_t* const order = placed + rows;
  const auto blocks = [](std::int64_t items) {
    return grid_stride_blocks((items + kThreads - 1) / kThreads, kThreads);
  };
  launch(stream, blocks(range.count), kThreads, 0, &clear_kernel, starts, range.count);
  launch(stream, blocks(rows), kThreads, 0, &count_kernel, tokens, rows, range, starts);
  launch(stream, 1, kScanThreads, 0, &start_kernel, starts, cursors, range.count);
  launch(stream, blocks(rows), kThreads, 0, &place_kernel, tokens, rows, range, cursors, placed);
  launch(stream, blocks(rows), kThreads, 0, &rank_kernel, tokens, range, starts, cursors, placed,
         order);
  return {starts, cursors, order};
}

}  // namespace

void embedding_forward(StreamHandle stream, const std::int32_t* tokens, TokenRange range,
                       const void* table, const void* positions, void* out, std::int64_t rows,
                       std::int64_t time, std::int64_t hidden, DType dtype) {
  SLUICE_CHECK(positions == nullptr || time > 0);
  with_act_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (rows <= 0 || hidden <= 0) return;
    const bool aligned = all_aligned_to_16(table, positions, out, hidden * sizeof(T));
    launch(stream, static_cast<unsigned>(std::min(rows, kMaxGridX)), kGatherThreads, 0,
           aligned ? &gather_kernel<T, kPackElems<T>> : &gather_kernel<T, 1>, tokens, range,
           static_cast<const T*>(table), static_cast<const T*>(positions), static_cast<T*>(out),
           rows, time, hidden);
  });
}

std::uint64_t embedding_backward_workspace_bytes(std::int64_t rows, std::int64_t vocab) {
  return static_cast<std::uint64_t>(rows + vocab) * 2 * sizeof(std::int32_t);
}

void embedding_backward(StreamHandle stream, const std::int32_t* tokens, TokenRange range,
                        const void* dout, void* dtable, void* dpositions, std::int64_t rows,
                        std::int64_t time, std::int64_t max_time, std::int64_t hidden, DType dtype,
                        void* workspace) {
  SLUICE_CHECK(rows <= 0x7fffffff && range.count > 0 && range.vocab <= 0x7fffffff);
  SLUICE_CHECK_MSG(dpositions == nullptr || (time > 0 && time <= max_time),
                   "a sequence is longer than the position table");
  with_act_type(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const RowsOfToken by_token = sort_rows(stream, tokens, rows, range, workspace);
    sum_into_table<T>(stream, dout, by_token, dtable, range.count, hidden);
    if (dpositions != nullptr) {
      sum_into_table<T>(stream, dout, RowsOfPosition{rows, time}, dpositions, max_time, hidden);
    }
  });
}

}  // namespace sluice::kernels::cuda
