// Norms, a thread block per row.
//
// A row needs two passes forward (mean, then variance, which avoids the cancellation of
// x^2 - mean^2) and one sum pass backward, and is then written. Threads hold their part of the row
// in registers between the passes if it fits. Rows too long for 1,024 threads, and unaligned rows,
// are read again in each pass, out of the caches. Row sums are added by halves within warps and
// then over warps, so their order depends only on the number of columns and on alignment. Weight
// gradients are sums down the columns (column_sums.cuh).
#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/norm.hpp"
#include "kernels/cuda/numeric.cuh"
#include "kernels/cuda/reduce.cuh"

namespace sluice::kernels::cuda {
namespace {

// Packs of a row that a thread holds in registers: limited by 64 registers per thread, and fewer if
// two arrays are held.
constexpr int kForwardHeld = 4;
constexpr int kBackwardHeld = 2;
constexpr int kMaxThreads = 1024;

// The packs of kElems elements of one row that this thread owns; the k-th is at index(k).
template <int kElems, int kHeld>
struct RowPart {
  std::int64_t packs;  // of the row

  __device__ __forceinline__ int count() const {
    return kHeld > 0 ? kHeld
                     : static_cast<int>((packs - threadIdx.x + blockDim.x - 1) / blockDim.x);
  }
  __device__ __forceinline__ std::int64_t index(int k) const {
    return threadIdx.x + static_cast<std::int64_t>(k) * blockDim.x;
  }
  __device__ __forceinline__ bool has(int k) const { return index(k) < packs; }
};

template <class T, int kElems>
__device__ __forceinline__ void load_floats(const T* row, std::int64_t pack, float (&to)[kElems]) {
  const Pack<T, kElems> loaded = load_pack<T, kElems>(row + pack * kElems);
#pragma unroll
  for (int e = 0; e < kElems; ++e) to[e] = load_float(loaded.values[e]);
}

template <class T, int kElems>
__device__ __forceinline__ void store_floats(T* row, std::int64_t pack,
                                             const float (&from)[kElems]) {
  Pack<T, kElems> rounded;
#pragma unroll
  for (int e = 0; e < kElems; ++e) rounded.values[e] = from_float<T>(from[e]);
  store_pack(row + pack * kElems, rounded);
}

// Arrays of the forward pass; bias and mean may be null.
struct ForwardArrays {
  const void* x;
  const void* weight;
  const void* bias;
  void* y;
  float* mean;
  float* rstd;
};

template <class T, int kElems, int kHeld>
__global__ void __launch_bounds__(kMaxThreads)
    forward_kernel(ForwardArrays arrays, std::int64_t cols, bool rms, float epsilon) {
  __shared__ float scratch[2][kWarpSize];
  const RowPart<kElems, kHeld> part{cols / kElems};
  const std::int64_t row = blockIdx.x;
  const T* const x = static_cast<const T*>(arrays.x) + row * cols;
  // kHeld == 0: one buffer that is filled again for each pack.
  float held[kHeld > 0 ? kHeld : 1][kElems];
  // Returns the k-th pack, from registers or from memory.
  const auto value = [&](int k) -> float(&)[kElems] {
    if constexpr (kHeld > 0) {
      return held[k];
    } else {
      load_floats(x, part.index(k), held[0]);
      return held[0];
    }
  };
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < part.count(); ++k) {
    if (!part.has(k)) break;
    if constexpr (kHeld > 0) load_floats(x, part.index(k), held[k]);
    if (rms) continue;
    const float(&v)[kElems] = value(k);
#pragma unroll
    for (int e = 0; e < kElems; ++e) sum += v[e];
  }
  const float count = static_cast<float>(cols);
  const float mean = rms ? 0.0f : block_sum(sum, scratch[0]) / count;
  // A second pass, because x^2 - mean^2 would cancel.
  float squares = 0.0f;
#pragma unroll
  for (int k = 0; k < part.count(); ++k) {
    if (!part.has(k)) break;
    const float(&v)[kElems] = value(k);
#pragma unroll
    for (int e = 0; e < kElems; ++e) squares += (v[e] - mean) * (v[e] - mean);
  }
  const float rstd = 1.0f / sqrtf(block_sum(squares, scratch[1]) / count + epsilon);
  // The statistics are saved for the backward pass.
  if (threadIdx.x == 0) {
    if (arrays.mean != nullptr && !rms) arrays.mean[row] = mean;
    arrays.rstd[row] = rstd;
  }
#pragma unroll
  for (int k = 0; k < part.count(); ++k) {
    if (!part.has(k)) break;
    const float(&v)[kElems] = value(k);
    float weight[kElems], bias[kElems] = {}, out[kElems];
    load_floats(static_cast<const T*>(arrays.weight), part.index(k), weight);
    if (arrays.bias != nullptr) {
      load_floats(static_cast<const T*>(arrays.bias), part.index(k), bias);
    }
#pragma unroll
    for (int e = 0; e < kElems; ++e) out[e] = (v[e] - mean) * rstd * weight[e] + bias[e];
    store_floats(static_cast<T*>(arrays.y) + row * cols, part.index(k), out);
  }
}

// Arrays of the backward pass; mean and residual may be null.
struct BackwardArrays {
  const void* dy;
  const void* x;
  const void* weight;
  const float* mean;
  const float* rstd;
  const void* residual;
  void* dx;
};

// With xhat = (x - mean) rstd and g = dy weight:
//   dx = rstd (g - mean(g) - xhat mean(g xhat)) + residual;  rms omits mean(g).
template <class T, int kElems, int kHeld>
__global__ void __launch_bounds__(kMaxThreads)
    backward_input_kernel(BackwardArrays arrays, std::int64_t cols, bool rms) {
  __shared__ float scratch[2][kWarpSize];
  const RowPart<kElems, kHeld> part{cols / kElems};
  const std::int64_t row = blockIdx.x;
  const T* const dy = static_cast<const T*>(arrays.dy) + row * cols;
  const T* const x = static_cast<const T*>(arrays.x) + row * cols;
  const float mean = rms ? 0.0f : arrays.mean[row];
  const float rstd = arrays.rstd[row];
  float g[kHeld > 0 ? kHeld : 1][kElems], xhat[kHeld > 0 ? kHeld : 1][kElems];
  // Loads the k-th pack of g and xhat.
  const auto read = [&](int k) {
    const int at = kHeld > 0 ? k : 0;
    float weight[kElems];
    load_floats(dy, part.index(k), g[at]);
    load_floats(x, part.index(k), xhat[at]);
    load_floats(static_cast<const T*>(arrays.weight), part.index(k), weight);
#pragma unroll
    for (int e = 0; e < kElems; ++e) {
      g[at][e] *= weight[e];
      xhat[at][e] = (xhat[at][e] - mean) * rstd;
    }
  };
  float sum_g = 0.0f, sum_g_xhat = 0.0f;
#pragma unroll
  for (int k = 0; k < part.count(); ++k) {
    if (!part.has(k)) break;
    read(k);
    const int at = kHeld > 0 ? k : 0;
#pragma unroll
    for (int e = 0; e < kElems; ++e) {
      sum_g += g[at][e];
      sum_g_xhat += g[at][e] * xhat[at][e];
    }
  }
  const float count = static_cast<float>(cols);
  // Means of g and of g xhat; block_sum gives every thread the same bits.
  const float mean_g = rms ? 0.0f : block_sum(sum_g, scratch[0]) / count;
  const float mean_g_xhat = block_sum(sum_g_xhat, scratch[1]) / count;
#pragma unroll
  for (int k = 0; k < part.count(); ++k) {
    if (!part.has(k)) break;
    if constexpr (kHeld == 0) read(k);
    const int at = kHeld > 0 ? k : 0;
    float residual[kElems] = {}, out[kElems];
    if (arrays.residual != nullptr) {
      load_floats(static_cast<const T*>(arrays.residual) + row * cols, part.index(k), residual);
    }
#pragma unroll
    for (int e = 0; e < kElems; ++e) {
      out[e] = rstd * (g[at][e] - mean_g - xhat[at][e] * mean_g_xhat) + residual[e];
    }
    store_floats(static_cast<T*>(arrays.dx) + row * cols, part.index(k), out);
  }
}

// dweight = sum over rows of dy xhat, dbias = sum over rows of dy.
template <class T, bool kAligned>
struct WeightTerms {
  const T* dy;
  const T* x;
  const float* mean;  // null: 0
  const float* rstd;

  struct Loaded {
    Pack<T> dy, x;
    float mean, rstd;
  };
  __device__ __forceinline__ Loaded load(std::int64_t row, std::int64_t c,
                                         std::int64_t cols) const {
    return {load_columns<kAligned>(dy + row * cols, c, cols),
            load_columns<kAligned>(x + row * cols, c, cols), mean != nullptr ? mean[row] : 0.0f,
            rstd[row]};
  }
  __device__ __forceinline__ void of(const Loaded& loaded, int e, float (&terms)[2]) const {
    terms[1] = load_float(loaded.dy.values[e]);
    terms[0] = terms[1] * ((load_float(loaded.x.values[e]) - loaded.mean) * loaded.rstd);
  }
};

void check(const NormShape& shape, const float* mean) {
  SLUICE_CHECK(shape.cols > 0);
  SLUICE_CHECK(shape.rows <= kMaxGridX);
  SLUICE_CHECK_MSG(shape.rms || shape.rows == 0 || mean != nullptr, "LayerNorm needs its means");
}

// Threads for a row of `packs` packs, `held` per thread: a whole number of warps.
unsigned row_threads(std::int64_t packs, int held) {
  const std::int64_t threads = (packs + held - 1) / held;
  const std::int64_t warps = (threads + kWarpSize - 1) / kWarpSize;
  return static_cast<unsigned>(std::min<std::int64_t>(warps * kWarpSize, kMaxThreads));
}

// Whether a block of 1,024 threads can hold the row in registers.
bool can_hold(std::int64_t packs, int held) {
  return packs <= std::int64_t{kMaxThreads} * held;
}

}  // namespace

void norm_forward(StreamHandle stream, const NormShape& shape, const void* x, const void* weight,
                  const void* bias, void* y, float* mean, float* rstd) {
  check(shape, mean);
  with_act_type(shape.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (shape.rows == 0) return;
    const bool aligned = all_aligned_to_16(x, weight, bias, y, shape.cols * sizeof(T));
    const std::int64_t packs = aligned ? shape.cols / kPackElems<T> : shape.cols;
    // Unaligned rows use single elements; long rows are read again in each pass.
    auto* kernel = &forward_kernel<T, 1, 0>;
    if (aligned) {
      kernel = can_hold(packs, kForwardHeld) ? &forward_kernel<T, kPackElems<T>, kForwardHeld>
                                             : &forward_kernel<T, kPackElems<T>, 0>;
    }
    launch(stream, static_cast<unsigned>(shape.rows), row_threads(packs, kForwardHeld), 0, kernel,
           ForwardArrays{x, weight, bias, y, mean, rstd}, shape.cols, shape.rms, shape.epsilon);
  });
}

void norm_backward_input(StreamHandle stream, const NormShape& shape, const void* dy, const void* x,
                         const void* weight, const float* mean, const float* rstd,
                         const void* residual, void* dx) {
  check(shape, mean);
  with_act_type(shape.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (shape.rows == 0) return;
    const bool aligned = all_aligned_to_16(dy, x, weight, residual, dx, shape.cols * sizeof(T));
    const std::int64_t packs = aligned ? shape.cols / kPackElems<T> : shape.cols;
    auto* kernel = &backward_input_kernel<T, 1, 0>;
    if (aligned) {
      kernel = can_hold(packs, kBackwardHeld)
                   ? &backward_input_kernel<T, kPackElems<T>, kBackwardHeld>
                   : &backward_input_kernel<T, kPackElems<T>, 0>;
    }
    launch(stream, static_cast<unsigned>(shape.rows), row_threads(packs, kBackwardHeld), 0, kernel,
           BackwardArrays{dy, x, weight, mean, rstd, residual, dx}, shape.cols, shape.rms);
  });
}

void norm_backward_weight(StreamHandle stream, const NormShape& shape, const void* dy,
                          const void* x, const float* mean, const float* rstd, void* dweight,
                          void* dbias) {
  check(shape, mean);
  with_act_type(shape.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const ColumnSumsOut<2, T> out{{static_cast<T*>(dweight), static_cast<T*>(dbias)}};
    const auto run = [&](auto aligned) {
      const WeightTerms<T, decltype(aligned)::value> terms{
          static_cast<const T*>(dy), static_cast<const T*>(x), shape.rms ? nullptr : mean, rstd};
      column_sums(stream, terms, out, shape.rows, shape.cols);
    };
    if (all_aligned_to_16(dy, x, shape.cols * sizeof(T))) {
      run(std::true_type());
    } else {
      run(std::false_type());
    }
  });
}

}  // namespace sluice::kernels::cuda
