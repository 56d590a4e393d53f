// LayerNorm and RMSNorm, row by row.
//
// forward   y = (x - mean) rstd weight (+ bias); the statistics take two passes over the row, which
//           is in the nearest cache by the second. One pass with x^2 - mean^2 would cancel.
// backward  dx needs two sums per row (see backward_input_of). dweight and dbias are sums down the
//           columns, in blocks of rows in order (column_sums.hpp).
//
// Row sums use 16 virtual lanes (lane_sums) on every instruction set. Tasks are cut by shape: about
// 16,384 elements of rows, or 128 columns. So the bits do not depend on threads or vector width.
#include "kernels/host/norm.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "kernels/host/parallel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/host/norm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/host/column_sums.hpp"
#include "kernels/host/simd.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::host::HWY_NAMESPACE {

// A row's mean (0 for rms) and 1 / sqrt(mean((x - mean)^2) + epsilon).
struct RowStatistics {
  float mean;
  float rstd;
};

template <class T>
HWY_INLINE RowStatistics row_statistics(const T* x, std::int64_t cols, bool rms, float epsilon) {
  const float count = static_cast<float>(cols);
  float mean = 0.0f;
  if (!rms) {
    float sum[1];
    lane_sums(cols, sum,
              [&](auto d, std::int64_t c, auto* terms) HWY_ATTR { terms[0] = load(d, x + c); });
    mean = sum[0] / count;
  }
  float squares[1];
  lane_sums(cols, squares, [&](auto d, std::int64_t c, auto* terms) HWY_ATTR {
    const auto centered = hn::Sub(load(d, x + c), hn::Set(d, mean));
    terms[0] = hn::Mul(centered, centered);
  });
  return {mean, 1.0f / std::sqrt(squares[0] / count + epsilon)};
}

template <class T>
HWY_INLINE void forward_of(const NormShape& shape, const T* x, const T* weight, const T* bias, T* y,
                           float* mean, float* rstd, std::int64_t first, std::int64_t last) {
  const std::int64_t cols = shape.cols;
  for (std::int64_t row = first; row < last; ++row) {
    const T* const from = x + row * cols;
    T* const to = y + row * cols;
    const RowStatistics row_of = row_statistics(from, cols, shape.rms, shape.epsilon);
    if (mean != nullptr && !shape.rms) mean[row] = row_of.mean;
    rstd[row] = row_of.rstd;
    for_lanes(0, cols, [&](auto d, std::int64_t c) HWY_ATTR {
      const auto centered = hn::Sub(load(d, from + c), hn::Set(d, row_of.mean));
      auto value = hn::Mul(hn::Mul(centered, hn::Set(d, row_of.rstd)), load(d, weight + c));
      if (bias != nullptr) value = hn::Add(value, load(d, bias + c));
      store(d, value, to + c);
    });
  }
}

void forward_rows(const NormShape& shape, const void* x, const void* weight, const void* bias,
                  void* y, float* mean, float* rstd, std::int64_t first, std::int64_t last) {
  as_stored(shape.dtype, [&](auto as) HWY_ATTR {
    forward_of(shape, as.in(x), as.in(weight), as.in(bias), as.out(y), mean, rstd, first, last);
  });
}

// With xhat = (x - mean) rstd and g = dy weight:
//   dx = rstd (g - mean(g) - xhat mean(g xhat)) + residual;  rms omits mean(g).
template <class T>
HWY_INLINE void backward_input_of(const NormShape& shape, const T* dy, const T* x, const T* weight,
                                  const float* mean, const float* rstd, const T* residual, T* dx,
                                  std::int64_t first, std::int64_t last) {
  const std::int64_t cols = shape.cols;
  const float count = static_cast<float>(cols);
  // xhat is computed again from x, mean and rstd: that is cheaper than keeping it in memory.
  for (std::int64_t row = first; row < last; ++row) {
    const T* const dy_row = dy + row * cols;
    const T* const x_row = x + row * cols;
    const float row_mean = shape.rms ? 0.0f : mean[row];
    const float row_rstd = rstd[row];
    const auto normalized = [&](auto d, std::int64_t c) HWY_ATTR {
      return hn::Mul(hn::Sub(load(d, x_row + c), hn::Set(d, row_mean)), hn::Set(d, row_rstd));
    };
    float sums[2];
    lane_sums(cols, sums, [&](auto d, std::int64_t c, auto* terms) HWY_ATTR {
      terms[0] = hn::Mul(load(d, dy_row + c), load(d, weight + c));
      terms[1] = hn::Mul(terms[0], normalized(d, c));
    });
    // Means of g and of g xhat, both from one pass over the row.
    const float mean_g = shape.rms ? 0.0f : sums[0] / count;
    const float mean_g_xhat = sums[1] / count;
    for_lanes(0, cols, [&](auto d, std::int64_t c) HWY_ATTR {
      const auto g = hn::Mul(load(d, dy_row + c), load(d, weight + c));
      const auto inner = hn::Sub(hn::Sub(g, hn::Set(d, mean_g)),
                                 hn::Mul(normalized(d, c), hn::Set(d, mean_g_xhat)));
      auto value = hn::Mul(hn::Set(d, row_rstd), inner);
      if (residual != nullptr) value = hn::Add(value, load(d, residual + row * cols + c));
      store(d, value, dx + row * cols + c);
    });
  }
}

void backward_input_rows(const NormShape& shape, const void* dy, const void* x, const void* weight,
                         const float* mean, const float* rstd, const void* residual, void* dx,
                         std::int64_t first, std::int64_t last) {
  as_stored(shape.dtype, [&](auto as) HWY_ATTR {
    backward_input_of(shape, as.in(dy), as.in(x), as.in(weight), mean, rstd, as.in(residual),
                      as.out(dx), first, last);
  });
}

// dweight = sum over rows of dy xhat, dbias = sum over rows of dy, for columns
// [begin, begin + cols). Both sums share one pass over dy and x.
template <class T>
HWY_INLINE void backward_weight_of(const NormShape& shape, const T* dy, const T* x,
                                   const float* mean, const float* rstd, T* dweight, T* dbias,
                                   std::int64_t begin, std::int64_t cols) {
  float totals[2][kTileCols];
  column_sums(shape.rows, cols, totals,
              [&](auto d, std::int64_t row, std::int64_t c, auto* terms) HWY_ATTR {
                const std::int64_t at = row * shape.cols + begin + c;
                const float row_mean = shape.rms ? 0.0f : mean[row];
                const auto xhat =
                    hn::Mul(hn::Sub(load(d, x + at), hn::Set(d, row_mean)), hn::Set(d, rstd[row]));
                terms[1] = load(d, dy + at);
                terms[0] = hn::Mul(terms[1], xhat);
              });
  for_lanes(0, cols, [&](auto d, std::int64_t c) HWY_ATTR {
    store(d, hn::LoadU(d, totals[0] + c), dweight + begin + c);
    if (dbias != nullptr) store(d, hn::LoadU(d, totals[1] + c), dbias + begin + c);
  });
}

void backward_weight_tile(const NormShape& shape, const void* dy, const void* x, const float* mean,
                          const float* rstd, void* dweight, void* dbias, std::int64_t begin,
                          std::int64_t cols) {
  as_stored(shape.dtype, [&](auto as) HWY_ATTR {
    backward_weight_of(shape, as.in(dy), as.in(x), mean, rstd, as.out(dweight), as.out(dbias),
                       begin, cols);
  });
}

}  // namespace sluice::kernels::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels::host {
namespace {

HWY_EXPORT(forward_rows);
HWY_EXPORT(backward_input_rows);
HWY_EXPORT(backward_weight_tile);

// Rows of a task: about 16,384 elements.
std::int64_t rows_per_piece(std::int64_t cols) {
  return std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, cols));
}

void check(const NormShape& shape, const float* mean) {
  SLUICE_CHECK(is_act_dtype(shape.dtype));
  SLUICE_CHECK(shape.cols > 0);
  SLUICE_CHECK_MSG(shape.rms || shape.rows == 0 || mean != nullptr, "LayerNorm needs its means");
}

}  // namespace

void norm_forward(const Parallel& parallel, const NormShape& shape, const void* x,
                  const void* weight, const void* bias, void* y, float* mean, float* rstd) {
  check(shape, mean);
  parallel.for_blocks(shape.rows, rows_per_piece(shape.cols),
                      [&](std::int64_t first, std::int64_t last) {
                        HWY_DYNAMIC_DISPATCH(forward_rows)
                        (shape, x, weight, bias, y, mean, rstd, first, last);
                      });
}

void norm_backward_input(const Parallel& parallel, const NormShape& shape, const void* dy,
                         const void* x, const void* weight, const float* mean, const float* rstd,
                         const void* residual, void* dx) {
  check(shape, mean);
  parallel.for_blocks(shape.rows, rows_per_piece(shape.cols),
                      [&](std::int64_t first, std::int64_t last) {
                        HWY_DYNAMIC_DISPATCH(backward_input_rows)
                        (shape, dy, x, weight, mean, rstd, residual, dx, first, last);
                      });
}

void norm_backward_weight(const Parallel& parallel, const NormShape& shape, const void* dy,
                          const void* x, const float* mean, const float* rstd, void* dweight,
                          void* dbias) {
  check(shape, mean);
  parallel.for_blocks(shape.cols, kTileCols, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(backward_weight_tile)
    (shape, dy, x, mean, rstd, dweight, dbias, begin, end - begin);
  });
}

}  // namespace sluice::kernels::host
#endif  // HWY_ONCE
