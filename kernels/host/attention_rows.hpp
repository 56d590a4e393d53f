// Rows and scratch memory that the passes of attention share (private to attention and
// attention_part).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/dtype.hpp"
#include "base/units.hpp"
#include "kernels/host/gemm_cut.hpp"
#include "kernels/host/rows.hpp"

namespace sluice::kernels::host {

// Queries are taken in blocks of so many rows.
inline constexpr std::int64_t kQueryRows = 64;

// Stored rows in 16 bits or fp32, with `stride` elements between rows.
struct Rows {
  void* data;
  DType dtype;
  std::int64_t stride;

  Rows at(std::int64_t row, std::int64_t col) const {
    const std::int64_t offset = (row * stride + col) * std::int64_t(dtype_bytes(dtype));
    return {static_cast<std::byte*>(data) + offset, dtype, stride};
  }
};

// An fp32 view of rows.
struct View {
  const float* data;
  std::int64_t stride;
  const float* row(std::int64_t index) const { return data + index * stride; }
};

// Widens 16-bit rows into `scratch` [rows, cols]. fp32 rows are read in place.
inline View widened(const Rows& rows, std::int64_t count, std::int64_t cols, float* scratch) {
  if (rows.dtype == DType::kF32) return {static_cast<const float*>(rows.data), rows.stride};
  widen_block(rows.data, rows.dtype, rows.stride, count, cols, scratch, cols);
  return {scratch, cols};
}

inline void store(const float* from, std::int64_t count, std::int64_t cols, const float* factor,
                  const Rows& to) {
  store_block({.rows = count,
               .cols = cols,
               .from = from,
               .from_stride = cols,
               .to = to.data,
               .to_dtype = to.dtype,
               .to_stride = to.stride,
               .factor = factor});
}

// The keys of a task, its queries, and the width of their rows.
struct ScratchSize {
  std::int64_t keys = 0, queries = 0, head_dim = 0;
  std::int64_t block() const { return std::min(kQueryRows, queries); }
};

// The part of the workspace that belongs to one worker.
struct Scratch {
  float *k, *v, *dk, *dv;   // [keys, head_dim]
  float *scores, *dscores;  // [64, score_stride]
  float *q, *rows, *drows;  // [64, head_dim]
  float* out;               // [64, head_dim]
  float* factor;            // [64]
  std::int64_t score_stride;

  static std::int64_t floats(const ScratchSize& size) {
    const std::int64_t all = 4 * size.keys * size.head_dim +
                             2 * size.block() * unaliased_stride(size.keys) +
                             4 * size.block() * size.head_dim + size.block();
    return static_cast<std::int64_t>(
        round_up(static_cast<std::uint64_t>(all), kTensorAlignmentBytes / sizeof(float)));
  }

  Scratch(const ScratchSize& size, void* workspace, int worker)
      : score_stride(unaliased_stride(size.keys)) {
    const std::int64_t panel = size.keys * size.head_dim, rows_of_block = size.block();
    float* next = static_cast<float*>(workspace) + worker * floats(size);
    const auto take = [&next](std::int64_t count) {
      float* const taken = next;
      next += count;
      return taken;
    };
    k = take(panel), v = take(panel), dk = take(panel), dv = take(panel);
    scores = take(rows_of_block * score_stride);
    dscores = take(rows_of_block * score_stride);
    q = take(rows_of_block * size.head_dim), rows = take(rows_of_block * size.head_dim);
    drows = take(rows_of_block * size.head_dim), out = take(rows_of_block * size.head_dim);
    factor = take(rows_of_block);
  }
};

}  // namespace sluice::kernels::host
