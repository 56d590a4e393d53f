// Work of updates that need whole tensors, cut by the tensors' shapes alone.
//
// A tensor is cut into tiles of 64 rows and 1,024 columns. A tile writes partial results (sums or
// maxima) to its own memory: one per row, one per column, and one for itself. Reductions then go
// over the tiles in order. The bits depend neither on the thread count nor on the set of tensors in
// a call. Long sums are fp64. An fp32 sum covers one row of a tile (1,024 elements in 16 lanes,
// lane_sums of simd.hpp) or one column of a tile (64 elements, in row order).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <type_traits>
#include <vector>

#include "kernels/optimizer.hpp"
#include "kernels/tensor_tiles.hpp"

namespace sluice::kernels::host {

class Parallel;

// Partial results of a matrix's lines (rows, then columns): an fp32 number for each line of a tile.
class LinePartials {
 public:
  LinePartials() = default;
  LinePartials(const TensorView& tensor, WorkspaceParts& parts);

  float* rows_of(const Tile& tile) { return row_partials_ + tile.across * rows_ + tile.row; }
  float* cols_of(const Tile& tile) { return col_partials_ + tile.down * cols_ + tile.col; }

  // Lines are numbered: rows first, then columns.
  std::int64_t lines() const { return rows_ + cols_; }
  bool is_row(std::int64_t line) const { return line < rows_; }
  // Reduces the partials of each line in [begin, end), from `start` on, in the order of tiles:
  // totals[line - begin] = fold(totals[line - begin], partial).
  template <class Total, class Fold>
  void fold(std::int64_t begin, std::int64_t end, Total start, const Fold& fold,
            Total* totals) const {
    std::fill_n(totals, end - begin, start);
    const std::int64_t middle = std::clamp(rows_, begin, end);
    if (begin < middle) {
      fold_part(row_partials_ + begin, rows_, tiles_.across(), middle - begin, fold, totals);
    }
    if (middle < end) {
      fold_part(col_partials_ + (middle - rows_), cols_, tiles_.down(), end - middle, fold,
                totals + (middle - begin));
    }
  }

 private:
  template <class Total, class Fold>
  static void fold_part(const float* partials, std::int64_t stride, std::int64_t count,
                        std::int64_t lines, const Fold& fold, Total* totals) {
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t line = 0; line < lines; ++line) {
        totals[line] = fold(totals[line], partials[i * stride + line]);
      }
    }
  }

  TensorTiles tiles_;
  std::int64_t rows_ = 0, cols_ = 0;
  float* row_partials_ = nullptr;  // [tiles across, rows]
  float* col_partials_ = nullptr;  // [tiles down, cols]
};

// Consecutive tensors that share their passes. Small tensors together keep all threads busy, and
// data of one pass is still in the last-level cache for the next.
using TensorBatch = std::span<const ParameterSegment>;
// Every batch except the last has at least 2^20 elements (4 MiB of fp32).
std::vector<TensorBatch> tensor_batches(std::span<const ParameterSegment> segments);

// Returns the workspace bytes of the batch that needs most. lay_out(segment, parts) assigns a
// tensor its part of the workspace; over null `parts` it only counts bytes.
template <class LayOut>
std::uint64_t batch_workspace_bytes(std::span<const ParameterSegment> segments,
                                    const LayOut& lay_out) {
  std::uint64_t most = 0;
  for (const TensorBatch batch : tensor_batches(segments)) {
    WorkspaceParts parts(nullptr);
    for (const ParameterSegment& segment : batch) lay_out(segment, parts);
    most = std::max(most, parts.bytes());
  }
  return most;
}

// Calls body(tensors) for each batch. Batches run one after the other and share the workspace.
template <class LayOut, class Body>
void for_each_batch(std::span<const ParameterSegment> segments, void* workspace,
                    const LayOut& lay_out, const Body& body) {
  for (const TensorBatch batch : tensor_batches(segments)) {
    WorkspaceParts parts(workspace);
    std::vector<std::invoke_result_t<LayOut, const ParameterSegment&, WorkspaceParts&>> tensors;
    for (const ParameterSegment& segment : batch) tensors.push_back(lay_out(segment, parts));
    body(tensors);
  }
}

// Calls body(tensor of the batch, piece) for every piece; `pieces` returns a tensor's count.
void for_each_piece(const Parallel& parallel, std::size_t tensors,
                    const std::function<std::int64_t(std::size_t)>& pieces,
                    const std::function<void(std::size_t, std::int64_t)>& body);

// Calls body(tensor of the batch, begin, end) for blocks of at most `block` of each tensor's
// extent.
void for_each_block(const Parallel& parallel, std::size_t tensors,
                    const std::function<std::int64_t(std::size_t)>& extent, std::int64_t block,
                    const std::function<void(std::size_t, std::int64_t, std::int64_t)>& body);
// Lines (rows and columns) that one task reduces.
inline constexpr std::int64_t kLinesToATask = 1024;

// Calls body(tensor, tile) for every tile of each tensor, a type with a member `tiles`.
template <class Tensor, class Body>
void for_each_tile(const Parallel& parallel, std::vector<Tensor>& tensors, const Body& body) {
  for_each_piece(
      parallel, tensors.size(), [&](std::size_t i) { return tensors[i].tiles.count(); },
      [&](std::size_t i, std::int64_t index) { body(tensors[i], tensors[i].tiles[index]); });
}

// Returns the sum of `count` fp64 numbers, in order.
double sum_in_order(const double* numbers, std::int64_t count);

}  // namespace sluice::kernels::host
