// Gradient plumbing with the host's bits.
//
// Elementwise functions share one kernel with four elements per access. The squared norm gives half
// a warp to each block of elements: lane j adds the squares of elements j, j + 16, ... in fp64, and
// the lanes are added by halves, exactly as on the host. Block lists are compressed to runs of
// equal length, which fit into the parameters of a launch; long lists take several launches. The
// sum over ranks adds the parts of one element in rank order.
#include <algorithm>

#include "base/error.hpp"
#include "kernels/cuda/gradients.hpp"
#include "kernels/cuda/numeric.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/simt.cuh"

namespace sluice::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// --- element by element

template <class From, class To>
struct Convert {
  static constexpr bool kReads = false;
  __device__ To operator()(To, From from) const { return from_float<To>(load_float(from)); }
};
// Copies bits, including those of NaNs.
template <class T>
struct Convert<T, T> {
  static constexpr bool kReads = false;
  __device__ T operator()(T, T from) const { return from; }
};
template <class From, class To>
struct ConvertWeight {
  static constexpr bool kReads = false;
  __device__ To operator()(To, From from) const { return weight_from_float<To>(load_float(from)); }
};
template <class From, class To>
struct Add {
  static constexpr bool kReads = true;
  __device__ To operator()(To to, From from) const {
    return from_float<To>(__fadd_rn(load_float(to), load_float(from)));
  }
};

// to[i] = op(to[i], from[i]), with four elements per access.
template <class From, class To, class Op>
__global__ void map_kernel(const From* from, To* to, std::int64_t elems, bool aligned, Op op) {
  constexpr int kElems = 4;
  const std::int64_t quads = aligned ? elems / kElems : 0;
  for (std::int64_t quad = grid_thread(); quad < quads; quad += grid_threads()) {
    const auto numbers = load_pack<From, kElems>(from + quad * kElems);
    Pack<To, kElems> results{};
    if constexpr (Op::kReads) results = load_pack<To, kElems>(to + quad * kElems);
#pragma unroll
    for (int i = 0; i < kElems; ++i) {
      results.values[i] = op(results.values[i], numbers.values[i]);
    }
    store_pack(to + quad * kElems, results);
  }
  for (std::int64_t i = quads * kElems + grid_thread(); i < elems; i += grid_threads()) {
    To before{};
    if constexpr (Op::kReads) before = to[i];
    to[i] = op(before, from[i]);
  }
}

template <class From, class To, class Op>
void map(StreamHandle stream, const void* from, void* to, std::int64_t elems, Op op) {
  if (elems == 0) return;
  const std::int64_t items = (elems / 4 + kThreads) / kThreads;
  launch(stream, dim3(grid_stride_blocks(items, kThreads)), dim3(kThreads), 0,
         map_kernel<From, To, Op>, static_cast<const From*>(from), static_cast<To*>(to), elems,
         all_aligned_to_16(from, to), op);
}

// --- the norm

// Blocks of `length` elements from `begin` to `end` (the last one may be shorter). `first` is the
// index of the first partial.
struct BlockRun {
  std::int64_t begin = 0, end = 0, length = 1, first = 0;
};
// Keeps a launch's parameters below 4 KiB together with the others.
constexpr int kRunsToALaunch = 120;
struct BlockRuns {
  std::int64_t blocks = 0;  // in all runs
  int count = 0;
  BlockRun runs[kRunsToALaunch];
};
static_assert(sizeof(BlockRuns) < 3900);

constexpr int kNormLanes = 16;

template <class Round, class T>
__device__ double squared(T number) {
  const float narrow = load_float(from_float<Round>(load_float(number)));
  const auto value = static_cast<double>(narrow);
  return __dmul_rn(value, value);  // exact
}
// A lane's part of a block's sum. Loads run ahead, but additions keep their order.
template <class Round, class T>
__device__ double block_lane(const T* grad, std::int64_t elems, int lane) {
  constexpr int kAhead = 8;  // loads in flight
  double total = 0;
  std::int64_t i = lane;
  for (; i + (kAhead - 1) * kNormLanes < elems; i += kAhead * kNormLanes) {
    T numbers[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) numbers[k] = grad[i + k * kNormLanes];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) total = __dadd_rn(total, squared<Round>(numbers[k]));
  }
  for (; i < elems; i += kNormLanes) total = __dadd_rn(total, squared<Round>(grad[i]));
  return total;
}

// Half a warp handles a block.
template <class T, class Round>
__global__ void norm_kernel(const T* grad, const BlockRuns all, double* partial) {
  const int lane = static_cast<int>(threadIdx.x) % kNormLanes;
  // Grid strides over blocks of elements, half a warp each.
  const std::int64_t stride = grid_threads() / kNormLanes;
  // Both halves of a warp take the same number of turns, because they shuffle together.
  const std::int64_t turns = (all.blocks + stride - 1) / stride;
  for (std::int64_t turn = 0; turn < turns; ++turn) {
    const std::int64_t block = grid_thread() / kNormLanes + turn * stride;
    double total = 0;
    std::int64_t place = 0;
    if (block < all.blocks) {
      const std::int64_t first = all.runs[0].first;
      int run = 0;
      // A launch has few runs, so a linear search is cheap.
      while (run + 1 < all.count && all.runs[run + 1].first - first <= block) ++run;
      const BlockRun& of = all.runs[run];
      const std::int64_t begin = of.begin + (first + block - of.first) * of.length;
      const std::int64_t end = begin + of.length < of.end ? begin + of.length : of.end;
      total = block_lane<Round>(grad + begin, end - begin, lane);
      place = first + block;
    }
    for (int width = kNormLanes / 2; width > 0; width /= 2) {
      total = __dadd_rn(total, __shfl_down_sync(kAllLanes, total, width, kNormLanes));
    }
    if (lane == 0 && block < all.blocks) partial[place] = total;
  }
}

// Returns the run at the front of `blocks`, with the first partial `first`, and its block count.
BlockRun run_at(std::span<const Kernels::Block> blocks, std::int64_t first, std::size_t& count) {
  BlockRun run{blocks[0].begin, blocks[0].end, blocks[0].end - blocks[0].begin, first};
  count = 1;
  if (run.length <= 0) return {run.begin, run.begin, 1, first};  // an empty block sums to 0
  while (count < blocks.size() && blocks[count].begin == run.end) {
    const std::int64_t length = blocks[count].end - blocks[count].begin;
    // A shorter block may only be the last of a run.
    const bool is_short = blocks[count - 1].end - blocks[count - 1].begin != run.length;
    if (is_short || length <= 0 || length > run.length) break;
    run.end = blocks[count].end;
    ++count;
  }
  return run;
}

template <class T, class Round>
void launch_norm(StreamHandle stream, const void* grad, const BlockRuns& runs, double* partial) {
  const std::int64_t items = (runs.blocks * kNormLanes + kThreads - 1) / kThreads;
  launch(stream, dim3(grid_stride_blocks(items, kThreads)), dim3(kThreads), 0,
         norm_kernel<T, Round>, static_cast<const T*>(grad), runs, partial);
}

// --- ranks

template <class T, class Sum>
struct RankSum;
template <class T>
struct RankSum<T, float> {
  static __device__ float load(T number) { return load_float(number); }
  static __device__ float add(float a, float b) { return __fadd_rn(a, b); }
};
template <>
struct RankSum<double, double> {
  static __device__ double load(double number) { return number; }
  static __device__ double add(double a, double b) { return __dadd_rn(a, b); }
};
// Integers are unsigned, so sums wrap.
template <class T>
struct RankSum<T, T> {
  static __device__ T load(T number) { return number; }
  static __device__ T add(T a, T b) { return a + b; }
};
template <>
struct RankSum<float, float> {
  static __device__ float load(float number) { return number; }
  static __device__ float add(float a, float b) { return __fadd_rn(a, b); }
};

template <class Sum, class Out>
__device__ Out rounded_sum(Sum sum) {
  if constexpr (std::is_same_v<Sum, Out>) {
    return sum;
  } else {
    return from_float<Out>(sum);
  }
}

// Partial sums of at most 2^17 - 1 ranks.
constexpr int kMostRankSums = 17;

// Adds along law 2's tree, which splits n parts at the largest power of two below n. Parts come in
// order, so partial sums carry like a binary counter (collectives/fold.hpp has the host's).
template <class T, class Sum, class Out>
__global__ void fold_ranks_kernel(const RankParts parts, Out* out, std::int64_t elems) {
  using Of = RankSum<T, Sum>;
  const auto* const own = static_cast<const T*>(parts.own);
  const auto* const others = static_cast<const T*>(parts.others);
  for (std::int64_t i = grid_thread(); i < elems; i += grid_threads()) {
    Sum sums[kMostRankSums];
    int held = 0;
    for (int rank = 0; rank < parts.ranks; ++rank) {
      Sum sum = Of::load(rank == parts.own_rank ? own[i] : others[rank * elems + i]);
      for (int carry = rank; (carry & 1) != 0; carry >>= 1) sum = Of::add(sums[--held], sum);
      sums[held++] = sum;
    }
    Sum sum = sums[--held];
    while (held > 0) sum = Of::add(sums[--held], sum);
    out[i] = rounded_sum<Sum, Out>(sum);
  }
}

template <class T, class Sum, class Out>
void launch_fold_ranks(StreamHandle stream, const RankParts& parts, void* out, std::int64_t elems) {
  const std::int64_t items = (elems + kThreads - 1) / kThreads;
  launch(stream, dim3(grid_stride_blocks(items, kThreads)), dim3(kThreads), 0,
         fold_ranks_kernel<T, Sum, Out>, parts, static_cast<Out*>(out), elems);
}

}  // namespace

void accumulate(StreamHandle stream, float* accumulator, const void* grad, DType grad_dtype,
                bool first, std::int64_t elems) {
  with_act_type(grad_dtype, [&](auto as) {
    using Grad = typename decltype(as)::type;
    // The first gradient of a step replaces the accumulator's old contents.
    if (first) {
      map<Grad, float>(stream, grad, accumulator, elems, Convert<Grad, float>());
    } else {
      map<Grad, float>(stream, grad, accumulator, elems, Add<Grad, float>());
    }
  });
}

void cast(StreamHandle stream, const void* in, DType in_dtype, void* out, DType out_dtype,
          bool weight_rounding, std::int64_t elems) {
  with_act_type(in_dtype, [&](auto in_as) {
    with_act_type(out_dtype, [&](auto out_as) {
      using From = typename decltype(in_as)::type;
      using To = typename decltype(out_as)::type;
      // Without a conversion there is no rounding; bits are copied.
      if constexpr (!std::is_same_v<From, To>) {
        if (weight_rounding) {
          return map<From, To>(stream, in, out, elems, ConvertWeight<From, To>());
        }
      }
      map<From, To>(stream, in, out, elems, Convert<From, To>());
    });
  });
}

void squared_norm_blocks(StreamHandle stream, const void* grad, DType dtype, DType round_to,
                         std::span<const Kernels::Block> blocks, double* partial) {
  SLUICE_CHECK(is_act_dtype(round_to));
  std::size_t done = 0;
  while (done < blocks.size()) {
    BlockRuns runs;
    const std::size_t first = done;
    while (done < blocks.size() && runs.count < kRunsToALaunch) {
      std::size_t count = 0;
      runs.runs[runs.count++] =
          run_at(blocks.subspan(done), static_cast<std::int64_t>(done), count);
      done += count;
    }
    runs.blocks = static_cast<std::int64_t>(done - first);
    with_act_type(dtype, [&](auto as) {
      using T = typename decltype(as)::type;
      if constexpr (std::is_same_v<T, float>) {
        with_act_type(round_to, [&](auto round) {
          launch_norm<T, typename decltype(round)::type>(stream, grad, runs, partial);
        });
      } else {
        launch_norm<T, float>(stream, grad, runs, partial);
      }
    });
  }
}

void fold_ranks(StreamHandle stream, const RankParts& parts, DType dtype, void* out,
                DType out_dtype, std::int64_t elems) {
  SLUICE_CHECK(parts.ranks >= 1 && parts.own_rank >= 0 && parts.own_rank < parts.ranks);
  SLUICE_CHECK(parts.ranks < 1 << kMostRankSums);
  if (elems == 0) return;
  if (!is_act_dtype(dtype)) SLUICE_CHECK(out_dtype == dtype);
  switch (dtype) {
    case DType::kF64:
      return launch_fold_ranks<double, double, double>(stream, parts, out, elems);
    case DType::kI64:
      return launch_fold_ranks<std::uint64_t, std::uint64_t, std::uint64_t>(stream, parts, out,
                                                                            elems);
    case DType::kI32:
      return launch_fold_ranks<std::uint32_t, std::uint32_t, std::uint32_t>(stream, parts, out,
                                                                            elems);
    default:
      SLUICE_CHECK_MSG(is_act_dtype(dtype), "ranks add fp32, bf16, fp16, fp64, i32 or i64");
      with_act_type(dtype, [&](auto as) {
        with_act_type(out_dtype, [&](auto out_as) {
          launch_fold_ranks<typename decltype(as)::type, float, typename decltype(out_as)::type>(
              stream, parts, out, elems);
        });
      });
  }
}

}  // namespace sluice::kernels::cuda
