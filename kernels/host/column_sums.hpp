// Sums down the columns of a row-major matrix, in an order that only the shape determines: blocks
// of kSumRows rows in row order, then the blocks in order. The blocks also bound the fp32 error of
// a long sum. One task sums kTileCols columns. Included once per instruction set, like simd.hpp.
#ifndef SLUICE_KERNELS_HOST_COLUMN_SUMS_SIZES
#define SLUICE_KERNELS_HOST_COLUMN_SUMS_SIZES

#include <cstdint>

namespace sluice::kernels::host {

inline constexpr std::int64_t kSumRows = 64;
// 256 bytes of bf16 from each row. In a wide matrix every row is on another page. A tile half as
// wide takes 1.5 times as long (TLB misses); a wider one leaves too few tasks.
inline constexpr std::int64_t kTileCols = 128;

}  // namespace sluice::kernels::host

#endif

#if defined(SLUICE_KERNELS_HOST_COLUMN_SUMS) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_KERNELS_HOST_COLUMN_SUMS
#undef SLUICE_KERNELS_HOST_COLUMN_SUMS
#else
#define SLUICE_KERNELS_HOST_COLUMN_SUMS
#endif

#include "kernels/host/simd.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::host::HWY_NAMESPACE {

// block[k][c] += term k of rows [row, row + kRows) at column c, row by row.
template <int kRows, int K, class Terms>
HWY_INLINE void add_rows(std::int64_t row, std::int64_t cols, float (&block)[K][kTileCols],
                         const Terms& terms) {
  for_lanes(0, cols, [&](auto d, std::int64_t c) HWY_ATTR {
    hn::Vec<decltype(d)> sums[K];
    for (int k = 0; k < K; ++k) sums[k] = hn::LoadU(d, block[k] + c);
    for (int next = 0; next < kRows; ++next) {
      hn::Vec<decltype(d)> values[K];
      terms(d, row + next, c, values);
      for (int k = 0; k < K; ++k) sums[k] = hn::Add(sums[k], values[k]);
    }
    for (int k = 0; k < K; ++k) hn::StoreU(sums[k], d, block[k] + c);
  });
}

// totals[k][c] = sum over rows of term k at column c, for c in [0, cols), cols <= kTileCols.
// terms(tag, row, c, out): out[k] = term k of that row's columns, from column c on.
template <int K, class Terms>
HWY_INLINE void column_sums(std::int64_t rows, std::int64_t cols, float (&totals)[K][kTileCols],
                            const Terms& terms) {
  for (auto& total : totals) {
    for (float& sum : total) sum = 0.0f;
  }
  for (std::int64_t first = 0; first < rows; first += kSumRows) {
    const std::int64_t last = first + kSumRows < rows ? first + kSumRows : rows;
    float block[K][kTileCols] = {};
    // Adds four rows per pass over the sums, in row order, for a quarter of the loads and stores.
    std::int64_t row = first;
    for (; row + 4 <= last; row += 4) add_rows<4>(row, cols, block, terms);
    for (; row < last; ++row) add_rows<1>(row, cols, block, terms);
    for (int k = 0; k < K; ++k) {
      for (std::int64_t c = 0; c < cols; ++c) totals[k][c] += block[k][c];
    }
  }
}

}  // namespace sluice::kernels::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
