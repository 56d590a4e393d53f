// One numbering of all pieces of a batch of tensors, so that small tensors share a parallel loop.
//
// Tensors are grouped into batches of at least 2^20 elements. Within a batch the pieces of all
// tensors are numbered consecutively; a binary search finds the tensor of a piece. The numbering
// depends on the shapes alone, and partial results are stored by tile, so it does not affect bits.
#include "kernels/host/optimizer/tensor_tiles.hpp"

#include <algorithm>

#include "kernels/host/parallel.hpp"

namespace sluice::kernels::host {

LinePartials::LinePartials(const TensorView& tensor, WorkspaceParts& parts)
    : tiles_(tensor),
      rows_(tensor.rows),
      cols_(tensor.cols),
      row_partials_(parts.take<float>(tiles_.across() * rows_)),
      col_partials_(parts.take<float>(tiles_.down() * cols_)) {}

std::vector<TensorBatch> tensor_batches(std::span<const ParameterSegment> segments) {
  constexpr std::int64_t kBatchElems = 1 << 20;
  std::vector<TensorBatch> batches;
  std::size_t first = 0;
  std::int64_t elems = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    elems += segments[i].end - segments[i].begin;
    if (elems < kBatchElems && i + 1 < segments.size()) continue;
    batches.push_back(segments.subspan(first, i + 1 - first));
    first = i + 1;
    elems = 0;
  }
  return batches;
}

void for_each_piece(const Parallel& parallel, std::size_t tensors,
                    const std::function<std::int64_t(std::size_t)>& pieces,
                    const std::function<void(std::size_t, std::int64_t)>& body) {
  std::vector<std::int64_t> ends;  // end of each tensor's pieces in the common numbering
  std::int64_t all = 0;
  for (std::size_t i = 0; i < tensors; ++i) ends.push_back(all += pieces(i));
  parallel.for_each(all, [&](std::int64_t piece) {
    // The first tensor with pieces beyond this number owns the piece.
    const auto end = std::upper_bound(ends.begin(), ends.end(), piece);
    const auto tensor = static_cast<std::size_t>(end - ends.begin());
    body(tensor, tensor == 0 ? piece : piece - ends[tensor - 1]);
  });
}

void for_each_block(const Parallel& parallel, std::size_t tensors,
                    const std::function<std::int64_t(std::size_t)>& extent, std::int64_t block,
                    const std::function<void(std::size_t, std::int64_t, std::int64_t)>& body) {
  for_each_piece(
      parallel, tensors, [&](std::size_t i) { return (extent(i) + block - 1) / block; },
      [&](std::size_t i, std::int64_t piece) {
        body(i, piece * block, std::min((piece + 1) * block, extent(i)));
      });
}

double sum_in_order(const double* numbers, std::int64_t count) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += numbers[i];
  return sum;
}

}  // namespace sluice::kernels::host
