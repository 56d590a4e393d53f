// Launches over the tiles and lines of several tensors (kernels/tensor_tiles.hpp), whose
// descriptions go to the GPU in a launch's parameters; and sums in the order that optimizer.hpp
// gives.
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
inline constexpr int kLanes = 16;  // of sums
inline constexpr int kRowTeams = kTileThreads / kLanes;
inline constexpr std::int64_t kLinesToABlock = kTileThreads;

// Of one tensor: where it is, and its share of the launches' blocks.
struct TensorPlace {
  std::int64_t begin = 0;  // its first element, of the chunk
  std::int64_t rows = 0, cols = 0;
  std::int64_t tiles_end = 0, line_blocks_end = 0;  // of this tensor and those before it

  // Rows, then columns, of a matrix; a vector has no lines.
  constexpr std::int64_t lines() const { return rows > 1 ? rows + cols : 0; }
};

template <class Tensor>
struct TensorSet {
  // Other parameters beside it: the arrays of an update.
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

// The number of the tensor that block `block` belongs to; block is counted within it after.
template <std::int64_t TensorPlace::*kEnd, class Tensor>
__device__ __forceinline__ int tensor_of(const TensorSet<Tensor>& set, std::int64_t& block) {
  int i = 0;
  std::int64_t before = 0;
  while (block >= set.tensors[i].place.*kEnd) before = set.tensors[i++].place.*kEnd;
  block -= before;
  return i;
}

// Consecutive tensors that share their launches and the workspace: as many as the parameters of a
// launch hold, or until they fill a GPU.
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

// lay_out(segment, parts) takes what a tensor needs.
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

// The sum of `count` numbers over 16 lanes, element i in lane i % 16, folded by halves: by half a
// warp, all of whose lanes call it; the first one gets the sum. term(i): element i.
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

// body(row, valid) for the rows of a tile, each by one half of a warp; both halves take as many
// turns, and where a half has no row left it calls with valid = false.
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
// The fp64 sum of `count` numbers, in order: by a block of kTileThreads; thread 0 gets it. Two
// barriers for each 1,024. staged: shared.
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

// Element `at` of a matrix with `cols` columns. Where both fit 32 bits, so does the division.
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
