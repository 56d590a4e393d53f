// Launches over tiles and lines of several tensors (kernels/tensor_tiles.hpp). The tensors'
// descriptions travel in a launch's parameters. Also sums in the order of optimizer.hpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/optimizer/update_loop.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/simt.cuh"
#include "kernels/tensor_tiles.hpp"

namespace sluice::kernels::cuda {

inline constexpr int kTileThreads = 256;
inline constexpr int kLanes = 16;  // lanes of a sum
inline constexpr int kRowTeams = kTileThreads / kLanes;
inline constexpr std::int64_t kLinesToABlock = kTileThreads;

// The place of one tensor in the chunk, and its share of a launch's blocks.
struct TensorPlace {
  std::int64_t begin = 0;  // its first element in the chunk
  std::int64_t rows = 0, cols = 0;
  std::int64_t tiles_end = 0, line_blocks_end = 0;  // sums over this tensor and those before it

  // Lines of a matrix: rows, then columns. A vector has none.
  constexpr std::int64_t lines() const { return rows > 1 ? rows + cols : 0; }
};

template <class Tensor>
struct TensorSet {
  // Leaves room for the arrays of an update, which are parameters too.
  static constexpr int kMost = static_cast<int>(
      (kMostParameterBytes - sizeof(UpdateArrays) - 2 * sizeof(std::int64_t)) / sizeof(Tensor));
  std::int64_t count = 0;
  Tensor tensors[kMost];

  std::int64_t tiles() const { return count == 0 ? 0 : tensors[count - 1].place.tiles_end; }
  std::int64_t line_blocks() const {
    return count == 0 ? 0 : tensors[count - 1].place.line_blocks_end;
  }
  void add(Tensor tensor, const ParameterSegment& segment) {
    TensorPlace& place = tensor.place;
    place.begin = segment.begin;
    place.rows = segment.tensor.rows;
    place.cols = segment.tensor.cols;
    place.tiles_end = tiles() + TensorTiles(segment.tensor).count();
    place.line_blocks_end = line_blocks() + (place.lines() + kLinesToABlock - 1) / kLinesToABlock;
    tensors[count++] = tensor;
  }
};

// Returns the tensor that block `block` belongs to, and makes `block` relative to it.
template <std::int64_t TensorPlace::*kEnd, class Tensor>
__device__ __forceinline__ int tensor_of(const TensorSet<Tensor>& set, std::int64_t& block) {
  int i = 0;
  std::int64_t before = 0;
  while (block >= set.tensors[i].place.*kEnd) before = set.tensors[i++].place.*kEnd;
  block -= before;
  return i;
}

// Calls body for batches of consecutive tensors that share launches and workspace. A batch ends
// when a launch's parameters are full, or when it is large enough to fill a GPU.
template <class Tensor, class Body>
void for_tensor_batches(std::span<const ParameterSegment> segments, const Body& body) {
  constexpr std::int64_t kBatchElems = 1 << 22;
  std::size_t first = 0;
  std::int64_t elems = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    elems += segments[i].end - segments[i].begin;
    const std::size_t count = i + 1 - first;
    const bool full = elems >= kBatchElems || count == TensorSet<Tensor>::kMost;
    if (!full && i + 1 < segments.size()) continue;
    body(segments.subspan(first, count));
    first = i + 1;
    elems = 0;
  }
}

// Returns the workspace of the largest batch. lay_out(segment, parts) takes a tensor's parts.
template <class Tensor, class LayOut>
std::uint64_t most_workspace_bytes(std::span<const ParameterSegment> segments,
                                   const LayOut& lay_out) {
  std::uint64_t most = 0;
  for_tensor_batches<Tensor>(segments, [&](std::span<const ParameterSegment> batch) {
    WorkspaceParts parts(nullptr);
    for (const ParameterSegment& segment : batch) lay_out(segment, parts);
    most = std::max(most, parts.bytes());
  });
  return most;
}

// Sums `count` numbers over 16 lanes, element i in lane i % 16, added by halves. All lanes of half
// a warp call it; the first lane gets the sum. term(i) returns element i.
template <class Term>
__device__ __forceinline__ float lane_sum(std::int64_t count, const Term& term) {
  float total = 0;
  for (std::int64_t i = static_cast<int>(threadIdx.x) % kLanes; i < count; i += kLanes) {
    total = __fadd_rn(total, term(i));
  }
  for (int width = kLanes / 2; width > 0; width /= 2) {
    total = __fadd_rn(total, __shfl_down_sync(kAllLanes, total, width, kLanes));
  }
  return total;
}

// Calls body(row, valid) for the rows of a tile, one per half warp. Both halves take the same
// number of turns; a half without a row calls with valid = false.
template <class Body>
__device__ __forceinline__ void for_tile_rows(std::int64_t rows, const Body& body) {
  for (std::int64_t first = 0; first < rows; first += kRowTeams) {
    const std::int64_t row = first + static_cast<int>(threadIdx.x) / kLanes;
    body(row, row < rows);
  }
}
__device__ __forceinline__ bool is_first_lane() {
  return threadIdx.x % kLanes == 0;
}

inline constexpr int kOrderedNumbers = 1024;
// Sums `count` numbers in fp64, in order. A block of kTileThreads calls it; thread 0 gets the sum.
// Two barriers for each 1,024 numbers. staged: shared memory.
template <class T>
__device__ __forceinline__ double ordered_sum(const T* numbers, std::int64_t count,
                                              T (&staged)[kOrderedNumbers]) {
  double sum = 0;
  for (std::int64_t first = 0; first < count; first += kOrderedNumbers) {
    const std::int64_t left = count - first;
    const int some = static_cast<int>(left < kOrderedNumbers ? left : kOrderedNumbers);
    for (int i = static_cast<int>(threadIdx.x); i < some; i += kTileThreads) {
      staged[i] = numbers[first + i];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int i = 0; i < some; ++i) sum = __dadd_rn(sum, static_cast<double>(staged[i]));
    }
    __syncthreads();
  }
  return sum;
}

// Position of element `at` in a matrix with `cols` columns. Uses a 32-bit division if both fit.
struct RowAndColumn {
  std::int64_t row, col;
};
__device__ __forceinline__ RowAndColumn row_and_column(std::int64_t at, std::int64_t cols) {
  if (((at | cols) >> 32) == 0) {
    const auto row = static_cast<std::uint32_t>(at) / static_cast<std::uint32_t>(cols);
    return {row, at - static_cast<std::int64_t>(row) * cols};
  }
  return {at / cols, at % cols};
}

inline dim3 grid_of(std::int64_t blocks) {
  SLUICE_CHECK(blocks <= kMaxGridX);
  return dim3(static_cast<unsigned>(blocks));
}

}  // namespace sluice::kernels::cuda
