// Sums down the columns of a row-major matrix, without workspace, in an order that only the shape
// determines.
//
// A block owns a tile of columns one 32-byte sector wide. Even a narrow matrix (768 columns of
// bf16: 48 tiles) thus occupies many multiprocessors, and nothing is read twice. Its 1,024 threads
// are two to a row: thread t sums every 512th row from t / 2 on, in row order. Then lanes add by
// halves within their warp, and one thread per column adds the warps in order. All sums are fp32.
#pragma once

#include <cstdint>

#include "kernels/cuda/numeric.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/stream.hpp"

namespace sluice::kernels::cuda {

inline constexpr int kColumnSumThreads = 1024;
inline constexpr int kColumnSumAcross = 2;  // threads per row of the tile
inline constexpr int kColumnSumRows = kColumnSumThreads / kColumnSumAcross;

// Loads kPackElems<T> elements from column c on: in one access if kAligned, otherwise one by one,
// with zeros beyond the last column.
template <bool kAligned, class T>
__device__ __forceinline__ Pack<T> load_columns(const T* row, std::int64_t c, std::int64_t cols) {
  if constexpr (kAligned) {
    return load_pack(row + c);
  } else {
    Pack<T> pack{};
    for (int e = 0; e < kPackElems<T>; ++e) {
      if (c + e < cols) pack.values[e] = row[c + e];
    }
    return pack;
  }
}

// Terms has load(row, c, cols), and of(loaded, e, terms), which computes kSums fp32 terms for
// element e of the pack at column c. out.data[k] may be null: that sum is not stored.
template <int kSums, class T>
struct ColumnSumsOut {
  static_assert(kSums == 1 || kSums == 2);
  T* data[kSums];
};

template <int kSums, class T, class Terms>
__global__ void __launch_bounds__(kColumnSumThreads)
    column_sums_kernel(Terms terms, ColumnSumsOut<kSums, T> out, std::int64_t rows,
                       std::int64_t cols) {
  constexpr int kElems = kPackElems<T>;
  constexpr int kTile = kColumnSumAcross * kElems;
  constexpr int kWarps = kColumnSumThreads / kWarpSize;
  const int thread = static_cast<int>(threadIdx.x);
  const int side = thread % kColumnSumAcross;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const std::int64_t c = first + side * kElems;
  float sums[kSums][kElems] = {};
  if (c < cols) {
#pragma unroll 4
    for (std::int64_t row = thread / kColumnSumAcross; row < rows; row += kColumnSumRows) {
      const auto loaded = terms.load(row, c, cols);
#pragma unroll
      for (int e = 0; e < kElems; ++e) {
        float of_element[kSums];
        terms.of(loaded, e, of_element);
#pragma unroll
        for (int k = 0; k < kSums; ++k) sums[k][e] += of_element[k];
      }
    }
  }
  __shared__ float of_warps[kSums][kTile][kWarps];
#pragma unroll
  for (int k = 0; k < kSums; ++k) {
#pragma unroll
    for (int e = 0; e < kElems; ++e) {
      float sum = sums[k][e];
      for (int distance = kWarpSize / 2; distance >= kColumnSumAcross; distance /= 2) {
        sum += __shfl_xor_sync(kAllLanes, sum, distance);
      }
      if (lane_index() < kColumnSumAcross) of_warps[k][side * kElems + e][warp_index()] = sum;
    }
  }
  __syncthreads();
  const int k = thread / kTile;
  const std::int64_t column = first + thread % kTile;
  T* const to = k == 0 ? out.data[0] : out.data[kSums - 1];
  if (k < kSums && column < cols && to != nullptr) {
    float sum = 0.0f;
    for (int warp = 0; warp < kWarps; ++warp) sum += of_warps[k][thread % kTile][warp];
    to[column] = from_float<T>(sum);
  }
}

// Host code.
template <int kSums, class T, class Terms>
void column_sums(StreamHandle stream, const Terms& terms, const ColumnSumsOut<kSums, T>& out,
                 std::int64_t rows, std::int64_t cols) {
  if (cols <= 0) return;
  constexpr std::int64_t kTile = kColumnSumAcross * kPackElems<T>;
  const std::int64_t tiles = (cols + kTile - 1) / kTile;
  SLUICE_CHECK(tiles <= kMaxGridX);
  launch(stream, static_cast<unsigned>(tiles), kColumnSumThreads, 0,
         &column_sums_kernel<kSums, T, Terms>, terms, out, rows, cols);
}

}  // namespace sluice::kernels::cuda
