// SIMD operations on rows and blocks, on one thread: the work of GEMM, attention and head around
// their matrix products. Sums use 16 fixed lanes (kernels/host/simd.hpp), so no result depends on
// the vector width. exp is Highway's (within about 1 ulp), which may fuse multiply-adds if the CPU
// can. A NaN in the input gives a NaN.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"

namespace sluice::kernels::host {

// to[r, c] = from[r, c] for a block [rows, cols] of bf16, fp16 or fp32. Strides: elements between
// rows.
void widen_block(const void* from, DType dtype, std::int64_t from_stride, std::int64_t rows,
                 std::int64_t cols, float* to, std::int64_t to_stride);

// to[r, c] = round(from[r, c] * factor[r] + bias[c]), to nearest even. factor and bias may be null;
// bias has bias_dtype. from == to (fp32) is allowed.
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

// Returns the largest element, or NaN if there is one. count > 0.
float row_max(const float* row, std::int64_t count);

// row[i] = exp(scale * row[i] - shift); returns the sum.
float exp_row(float* row, std::int64_t count, float scale, float shift);
// Returns the same sum and leaves the row alone.
float sum_exp_row(const float* row, std::int64_t count, float scale, float shift);

// row[i] *= factor.
void scale_row(float* row, std::int64_t count, float factor);

// Returns the sum of a[i] * b[i].
float dot_row(const float* a, const float* b, std::int64_t count);

// Softmax backward: grad[i] = probability[i] * (grad[i] - delta) * scale. On entry grad holds
// d/dprobability.
void softmax_grad_row(const float* probability, float* grad, std::int64_t count, float delta,
                      float scale);

// Rounds an fp32 row to bf16 in place; the bf16 numbers lie packed at the start of the row.
void narrow_row_in_place(float* row, std::int64_t count);

}  // namespace sluice::kernels::host
