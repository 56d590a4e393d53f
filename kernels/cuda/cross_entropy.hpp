// Softmax cross-entropy over rows of fp32 logits, for the head (head.hpp).
#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "kernels/cuda/stream.hpp"
#include "kernels/kernels.hpp"

namespace sluice::kernels::cuda {

// A block of logits: rows [0, rows), `stride` elements apart, with columns [first, first + cols) of
// the vocabulary.
struct LogitsBlock {
  float* logits;
  void* gradient;  // has `dtype` and the same layout; for kF32 the logits themselves
  DType dtype;
  std::int64_t rows, cols, stride, first;
  const std::int32_t* targets;  // [rows]
  float loss_scale;
};

// For whole rows (first is 0, cols the vocabulary): loss [rows] = -log softmax(logits)[target], lse
// [rows], and, if with_gradient, gradient = loss_scale * (softmax - onehot). One thread block
// handles a row, and its sums have a fixed order.
void cross_entropy_rows(StreamHandle stream, const LogitsBlock& block, bool with_gradient,
                        double* loss, float* lse);

// gradient = loss_scale * (exp(logits - lse) - onehot).
void cross_entropy_gradient(StreamHandle stream, const LogitsBlock& block, const float* lse);

// The statistics of rows whose other columns other ranks have; block.gradient is not used. One
// thread block handles a row, and its sums have a fixed order.
void row_statistics(StreamHandle stream, const LogitsBlock& block, const RowStatistics& statistics);

// sum *= exp(own_max - max).
void rescale_sums(StreamHandle stream, std::int64_t rows, const RowStatistics& statistics);

// *loss_sum, added in row order, and lse [rows], from the statistics of whole rows.
void loss_of_statistics(StreamHandle stream, std::int64_t rows, const RowStatistics& statistics,
                        double* loss_sum, float* lse);

// *sum = values[0] + values[1] + ..., added in this order.
void sum_in_order(StreamHandle stream, const double* values, std::int64_t count, double* sum);

}  // namespace sluice::kernels::cuda
