// Softmax cross-entropy, a thread block per row.
//
// Each thread walks over every 512th logit with a running maximum and a sum of exp(logit -
// maximum). Pairs {maximum, sum} are joined by halves within warps and then over warps, which gives
// all threads the same bits in a fixed order. A second pass over the row writes the
// gradient. Losses are fp64 and added in row order by one block. A target outside the vocabulary
// makes the row's loss and gradient NaN.
#include <cmath>

#include "base/error.hpp"
#include "kernels/cuda/cross_entropy.hpp"
#include "kernels/cuda/numeric.cuh"
#include "kernels/cuda/reduce.cuh"

namespace sluice::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kSumThreads = 256;

// A thread's view of a row: the maximum, and the sum of exp(logit - maximum).
struct Softmax {
  float maximum, sum;
};

// Nothing is fused, so both orders of a pair give the same bits. Either side may be empty.
__device__ __forceinline__ Softmax joined(const Softmax& a, const Softmax& b) {
  const float maximum = fmaxf(a.maximum, b.maximum);
  if (maximum == -INFINITY) return {maximum, a.sum + b.sum};
  return {maximum, __fadd_rn(__fmul_rn(a.sum, expf(a.maximum - maximum)),
                             __fmul_rn(b.sum, expf(b.maximum - maximum)))};
}

__device__ __forceinline__ Softmax joined_warp(Softmax value) {
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    value = joined(value, {__shfl_xor_sync(kAllLanes, value.maximum, distance),
                           __shfl_xor_sync(kAllLanes, value.sum, distance)});
  }
  return value;
}

// Joins the values of the whole block; every thread gets the result.
__device__ __forceinline__ Softmax joined_block(Softmax value, Softmax* scratch) {
  value = joined_warp(value);
  if (lane_index() == 0) scratch[warp_index()] = value;
  __syncthreads();
  const bool exists = lane_index() < kThreads / kWarpSize;
  return joined_warp(exists ? scratch[lane_index()] : Softmax{-INFINITY, 0.0f});
}

// A NaN does not change the maximum, but it makes the sum NaN.
__device__ __forceinline__ Softmax softmax_of(const float* row, std::int64_t cols) {
  Softmax mine{-INFINITY, 0.0f};
  for (std::int64_t col = threadIdx.x; col < cols; col += kThreads) {
    const float logit = row[col];
    if (logit > mine.maximum) {
      mine.sum = mine.sum * expf(mine.maximum - logit) + 1.0f;
      mine.maximum = logit;
    } else if (logit != -INFINITY) {
      mine.sum += expf(logit - mine.maximum);
    }
  }
  return mine;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    row_kernel(LogitsBlock block, bool with_gradient, double* loss, float* lse) {
  __shared__ Softmax scratch[kWarpSize];
  const std::int64_t index = blockIdx.x, cols = block.cols;
  float* const row = block.logits + index * block.stride;
  const std::int64_t target = block.targets[index];
  const bool known = target >= 0 && target < cols;
  const Softmax softmax = joined_block(softmax_of(row, cols), scratch);
  if (threadIdx.x == 0) {
    // fp64 keeps the small part of the difference of two large logits.
    const double log_sum = log(static_cast<double>(softmax.sum)), shift = softmax.maximum;
    const float target_logit = known ? row[target] : NAN;
    loss[index] = log_sum + (shift - static_cast<double>(target_logit));
    lse[index] = static_cast<float>(shift + log_sum);
  }
  if (!with_gradient) return;
  __syncthreads();  // the gradient may overwrite the target's logit
  T* const gradient = static_cast<T*>(block.gradient) + index * block.stride;
  const float scale = known ? block.loss_scale / softmax.sum : NAN;
  const float probability_scale = 1.0f / softmax.sum;
  for (std::int64_t col = threadIdx.x; col < cols; col += kThreads) {
    const float power = expf(row[col] - softmax.maximum);
    const float value =
        col == target ? block.loss_scale * (power * probability_scale - 1.0f) : power * scale;
    gradient[col] = from_float<T>(value);
  }
}

// The gradient of a slice of the vocabulary, from the saved lse.
template <class T>
__global__ void __launch_bounds__(kThreads) gradient_kernel(LogitsBlock block, const float* lse) {
  const std::int64_t row = blockIdx.x;
  const float shift = lse[row];
  const std::int64_t target = block.targets[row] - block.first;
  const float* const logits = block.logits + row * block.stride;
  T* const gradient = static_cast<T*>(block.gradient) + row * block.stride;
  for (std::int64_t col = threadIdx.x; col < block.cols; col += kThreads) {
    const float probability = expf(logits[col] - shift);
    gradient[col] =
        from_float<T>(block.loss_scale * (col == target ? probability - 1.0f : probability));
  }
}

__global__ void __launch_bounds__(kThreads)
    statistics_kernel(LogitsBlock block, RowStatistics statistics) {
  __shared__ Softmax scratch[kWarpSize];
  const std::int64_t index = blockIdx.x;
  const float* const row = block.logits + index * block.stride;
  const std::int64_t target = block.targets[index] - block.first;
  const Softmax softmax = joined_block(softmax_of(row, block.cols), scratch);
  if (threadIdx.x != 0) return;
  statistics.own_max[index] = statistics.max[index] = softmax.maximum;
  statistics.sum[index] = softmax.sum;
  statistics.target[index] = target >= 0 && target < block.cols ? row[target] : 0.0f;
}

__global__ void __launch_bounds__(kSumThreads)
    rescale_kernel(std::int64_t rows, RowStatistics statistics) {
  for (std::int64_t row = grid_thread(); row < rows; row += grid_threads()) {
    statistics.sum[row] *= expf(statistics.own_max[row] - statistics.max[row]);
  }
}

struct StoredLoss {
  const double* values;
  __device__ double operator()(std::int64_t row) const { return values[row]; }
};
// As row_kernel has it.
struct LossOfStatistics {
  RowStatistics statistics;
  float* lse;
  __device__ double operator()(std::int64_t row) const {
    const double log_sum = log(static_cast<double>(statistics.sum[row]));
    const double shift = statistics.max[row];
    lse[row] = static_cast<float>(shift + log_sum);
    return log_sum + (shift - static_cast<double>(statistics.target[row]));
  }
};

// One block. All threads make values; one thread adds them.
template <class Values>
__global__ void __launch_bounds__(kSumThreads)
    sum_kernel(Values values, std::int64_t count, double* sum) {
  __shared__ double staged[kSumThreads];
  double total = 0.0;
  for (std::int64_t first = 0; first < count; first += kSumThreads) {
    const std::int64_t at = first + threadIdx.x;
    if (at < count) staged[threadIdx.x] = values(at);
    __syncthreads();
    if (threadIdx.x == 0) {
      const std::int64_t rest = count - first;
      const int here = rest < kSumThreads ? static_cast<int>(rest) : kSumThreads;
      for (int i = 0; i < here; ++i) total += staged[i];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) *sum = total;
}

dim3 a_block_per_row(const LogitsBlock& block) {
  SLUICE_CHECK(block.rows <= kMaxGridX);
  return dim3(static_cast<unsigned>(block.rows));
}

}  // namespace

void cross_entropy_rows(StreamHandle stream, const LogitsBlock& block, bool with_gradient,
                        double* loss, float* lse) {
  with_act_type(block.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launch(stream, a_block_per_row(block), dim3(kThreads), 0, row_kernel<T>, block, with_gradient,
           loss, lse);
  });
}

void cross_entropy_gradient(StreamHandle stream, const LogitsBlock& block, const float* lse) {
  with_act_type(block.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launch(stream, a_block_per_row(block), dim3(kThreads), 0, gradient_kernel<T>, block, lse);
  });
}

void row_statistics(StreamHandle stream, const LogitsBlock& block,
                    const RowStatistics& statistics) {
  launch(stream, a_block_per_row(block), dim3(kThreads), 0, &statistics_kernel, block, statistics);
}

void rescale_sums(StreamHandle stream, std::int64_t rows, const RowStatistics& statistics) {
  const std::int64_t blocks = (rows + kSumThreads - 1) / kSumThreads;
  launch(stream, dim3(grid_stride_blocks(blocks, kSumThreads)), dim3(kSumThreads), 0,
         &rescale_kernel, rows, statistics);
}

void loss_of_statistics(StreamHandle stream, std::int64_t rows, const RowStatistics& statistics,
                        double* loss_sum, float* lse) {
  launch(stream, dim3(1), dim3(kSumThreads), 0, &sum_kernel<LossOfStatistics>,
         LossOfStatistics{statistics, lse}, rows, loss_sum);
}

void sum_in_order(StreamHandle stream, const double* values, std::int64_t count, double* sum) {
  launch(stream, dim3(1), dim3(kSumThreads), 0, &sum_kernel<StoredLoss>, StoredLoss{values}, count,
         sum);
}

}  // namespace sluice::kernels::cuda
