// Tiles of 16-bit numbers in shared memory, and tensor-core fragments loaded from them, for
// mma m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16"): C[16, 8] += A[16, 16] B[16, 8].
//
// Lane l of a warp holds the accumulator's elements (l/4, 2*(l%4) + {0, 1}) in c[0], c[1], and
// those eight rows below in c[2], c[3]. An A fragment holds two such 8x8 pairs side by side, so the
// accumulators of two neighbouring column tiles, rounded and packed, form an A fragment.
//
// A tile of `kCols` columns has rows kCols + 8 elements apart. Each stride is an odd number of
// 16-byte pieces if kCols is a multiple of 16, so the eight rows that ldmatrix reads at a time use
// different banks.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/numeric.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/simt.cuh"

namespace sluice::kernels::cuda {

inline constexpr int kPieceElems = 8;  // 16 bytes, the size of one asynchronous copy

constexpr int tile_stride(int cols) {
  return cols + kPieceElems;
}
// Number of elements of a tile, with padding.
constexpr int tile_elems(int rows, int cols) {
  return rows * tile_stride(cols);
}

// Starts to copy rows [0, rows) and columns [0, cols) of `from` (rows `stride` elements apart) into
// the tile, and fills the rest with zeros. All threads of the block take part. stride and the
// address of `from` are multiples of eight elements. The tile is complete after copy_async_commit,
// the matching wait and a barrier.
template <int kRows, int kCols, int kThreads, class T>
__device__ __forceinline__ void load_tile(T* tile, const T* from, std::int64_t stride,
                                          std::int64_t rows, std::int64_t cols) {
  constexpr int kPieces = kCols / kPieceElems, kRowsAtOnce = kThreads / kPieces;
  static_assert(kThreads % kPieces == 0 && kRows % kRowsAtOnce == 0);
  // A thread keeps its column, so that addresses advance by one addition.
  const int first = static_cast<int>(threadIdx.x) / kPieces;
  const int col = static_cast<int>(threadIdx.x) % kPieces * kPieceElems;
  const int inside = rows < kRows ? static_cast<int>(rows) : kRows;
  const std::int64_t left = cols - col;
  const int bytes = left >= kPieceElems ? 16 : left > 0 ? static_cast<int>(left) * 2 : 0;
  T* to = tile + first * tile_stride(kCols) + col;
  const T* at = from + first * stride + col;
#pragma unroll
  for (int row = first; row < kRows + first; row += kRowsAtOnce) {
    const bool copies = row < inside && bytes > 0;
    copy_async_16(to, copies ? at : from, copies ? bytes : 0);
    to += kRowsAtOnce * tile_stride(kCols);
    at += kRowsAtOnce * stride;
  }
}

// Loads the A fragment of rows [row, row + 16) and columns [col, col + 16) of a tile.
template <int kCols, class T>
__device__ __forceinline__ void load_a(std::uint32_t (&a)[4], const T* tile, int row, int col) {
  const int matrix = lane_index() / 8, line = lane_index() % 8;
  ldmatrix_x4(a, tile + (row + matrix % 2 * 8 + line) * tile_stride(kCols) + col + matrix / 2 * 8);
}

// Loads the fragment of A from a tile that holds the transpose; `row` and `col` are those of A.
template <int kCols, class T>
__device__ __forceinline__ void load_a_transposed(std::uint32_t (&a)[4], const T* tile, int row,
                                                  int col) {
  const int matrix = lane_index() / 8, line = lane_index() % 8;
  ldmatrix_x4_trans(
      a, tile + (col + matrix / 2 * 8 + line) * tile_stride(kCols) + row + matrix % 2 * 8);
}

// Loads two B fragments with rows [row, row + 16): columns [col, col + 8) in b[0], b[1], and
// [col + 8, col + 16) in b[2], b[3]. The tile holds B itself, with rows along k.
template <int kCols, class T>
__device__ __forceinline__ void load_b(std::uint32_t (&b)[4], const T* tile, int row, int col) {
  const int matrix = lane_index() / 8, line = lane_index() % 8;
  ldmatrix_x4_trans(
      b, tile + (row + matrix % 2 * 8 + line) * tile_stride(kCols) + col + matrix / 2 * 8);
}

// Loads the fragment of B from a tile that holds the transpose; `row` and `col` are those of B.
template <int kCols, class T>
__device__ __forceinline__ void load_b_transposed(std::uint32_t (&b)[4], const T* tile, int row,
                                                  int col) {
  const int matrix = lane_index() / 8, line = lane_index() % 8;
  ldmatrix_x4(b, tile + (col + matrix / 2 * 8 + line) * tile_stride(kCols) + row + matrix % 2 * 8);
}

// Multiplies with a pair of B fragments: c0 += A B[:, 0..8), c1 += A B[:, 8..16).
template <class T>
__device__ __forceinline__ void multiply_pair(float (&c0)[4], float (&c1)[4],
                                              const std::uint32_t (&a)[4],
                                              const std::uint32_t (&b)[4]) {
  const std::uint32_t left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
  mma_m16n8k16<T>(c0, a, left);
  mma_m16n8k16<T>(c1, a, right);
}

// Rounds both to nearest even, `low` into the lower half. A NaN stays a NaN.
template <class T>
__device__ __forceinline__ std::uint32_t pack_pair(float low, float high) {
#ifdef SLUICE_CUDA_EMULATION
  return from_float<T>(low).bits | static_cast<std::uint32_t>(from_float<T>(high).bits) << 16;
#else
  std::uint32_t pair;
  if constexpr (std::is_same_v<T, bf16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
#endif
}

// Packs two adjacent accumulator tiles as the A fragment of a further product.
template <class T>
__device__ __forceinline__ void fragment_of(std::uint32_t (&a)[4], const float (&left)[4],
                                            const float (&right)[4]) {
  a[0] = pack_pair<T>(left[0], left[1]);
  a[1] = pack_pair<T>(left[2], left[3]);
  a[2] = pack_pair<T>(right[0], right[1]);
  a[3] = pack_pair<T>(right[2], right[3]);
}

}  // namespace sluice::kernels::cuda
