// Rows and blocks of numbers, SIMD, one thread: what GEMM, attention and the head do around their
// matrix products. Sums run over 16 fixed lanes (kernels/host/simd.hpp), so no result here depends
// on the width of a vector; exp is Highway's (within 1 ulp or so), which may fuse multiply-adds
// where the CPU can. NaN in gives NaN out.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"

namespace sluice::kernels::host {

// to[r, c] = from[r, c] for a block [rows, cols] of bf16, fp16 or fp32; strides are elements
// between rows.
void widen_block(const void* from, DType dtype, std::int64_t from_stride, std::int64_t rows,
                 std::int64_t cols, float* to, std::int64_t to_stride);

// to[r, c] = round(from[r, c] * factor[r] + bias[c]), rounded to nearest even. factor and bias may
// be null (bias is of dtype bias_dtype). from == to (fp32) is allowed.
struct StoreBlock {
  std::int64_t rows = 0, cols = 0;
  const float* from = nullptr;
  std::int64_t from_stride = 0;
  void* to = nullptr;
  DType to_dtype = DType::kF32;
  std::int64_t to_stride = 0;
  const float* factor = nullptr;
  const void* bias = nullptr;
  DType bias_dtype = DType::kF32;
};
void store_block(const StoreBlock& block);

// Largest element; NaN where there is one. count > 0.
float row_max(const float* row, std::int64_t count);

// row[i] = exp(scale * row[i] - shift); returns the sum.
float exp_row(float* row, std::int64_t count, float scale, float shift);
// The same sum, and row is left alone.
float sum_exp_row(const float* row, std::int64_t count, float scale, float shift);

// row[i] *= factor.
void scale_row(float* row, std::int64_t count, float factor);

// sum of a[i] * b[i].
float dot_row(const float* a, const float* b, std::int64_t count);

// grad[i] = probability[i] * (grad[i] - delta) * scale: softmax backward, grad holding
// d/dprobability.
void softmax_grad_row(const float* probability, float* grad, std::int64_t count, float delta,
                      float scale);

// row (fp32) rounded to bf16 in place: the bf16 numbers end up packed at the start of the row.
void narrow_row_in_place(float* row, std::int64_t count);

}  // namespace sluice::kernels::host
