// Adafactor (optimizer.hpp has its arithmetic) in three passes over memory, the fewest there are:
// the statistics of an element's row and column need all gradients, and the update's RMS, by which
// it is clipped, needs the statistics.
//   1  sums of squares of gradients (by row and by column) and of the parameter
//   2  sum of squares of the update
//   3  the update, made again, is applied
// For each element pass 2 and 3 multiply by the reciprocal root of its row and of its column, where
// the formula has a division and a square root: rows + cols of each in place of rows * cols.
#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "kernels/host/optimizer/rules.hpp"
#include "kernels/host/optimizer/tensor_tiles.hpp"
#include "kernels/host/parallel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/host/optimizer/adafactor.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/host/optimizer/chunk_rows.hpp"

#ifndef SLUICE_KERNELS_HOST_OPTIMIZER_ADAFACTOR_TENSOR
#define SLUICE_KERNELS_HOST_OPTIMIZER_ADAFACTOR_TENSOR
namespace sluice::host {

// The first epsilon: torch's default for fp32. Means and roots are not less.
inline constexpr float kAdafactorEpsilon = 0x1p-23f;
inline constexpr float kAdafactorMostRoot = 1 / kAdafactorEpsilon;

// One tensor of a batch, and its part of the workspace.
struct AdafactorTensor {
  const ParameterSegment* segment = nullptr;
  TensorTiles tiles;
  float* statistics = nullptr;       // matrix: rows, then columns; vector: elements
  LinePartials partials;             // matrix: sums of squared gradients
  float* col_roots = nullptr;        // matrix: 1 / sqrt(column's mean)
  double* weight_squares = nullptr;  // of each tile
  double* update_squares = nullptr;  // of each tile
  float row_mean = 0, step_size = 0, lr_decay = 0;
  // Of the step: rate at which statistics forget, and what gradients are multiplied by.
  float rate = 0, grad_scale = 1;
};

}  // namespace sluice::host
#endif

HWY_BEFORE_NAMESPACE();
namespace sluice::host::HWY_NAMESPACE {

// torch's lerp: the form that is exact at the nearer end.
template <class D>
HWY_INLINE hn::Vec<D> lerp(D d, hn::Vec<D> from, hn::Vec<D> to, float rate) {
  const auto way = hn::Sub(to, from);
  if (rate < 0.5f) return hn::Add(from, hn::Mul(hn::Set(d, rate), way));
  return hn::Sub(to, hn::Mul(way, hn::Set(d, 1.0f - rate)));
}

template <class D>
HWY_INLINE hn::Vec<D> reciprocal_root(D d, hn::Vec<D> value) {
  return hn::Div(hn::Set(d, 1.0f), hn::Sqrt(value));
}

// Elements of tile row `row`, from the first of the chunk.
HWY_INLINE std::int64_t element(const AdafactorTensor& tensor, const Tile& tile, std::int64_t row) {
  return tensor.segment->begin + (tile.row + row) * tensor.segment->tensor.cols + tile.col;
}

void adafactor_squares(const UpdateBuffers& buffers, AdafactorTensor& tensor, const Tile& tile) {
  const bool matrix = is_matrix(tensor.segment->tensor);
  alignas(64) float g[TensorTiles::kCols];
  alignas(64) float cols[TensorTiles::kCols] = {};
  double weight_squares = 0;
  for (std::int64_t row = 0; row < tile.rows; ++row) {
    const std::int64_t at = element(tensor, tile, row);
    weight_squares += squares_of(load_master(buffers, at, tile.cols, g), tile.cols);
    if (!matrix) continue;
    load_gradient(buffers, tensor.grad_scale, at, tile.cols, g);
    tensor.partials.rows_of(tile)[row] = squares_of(g, tile.cols);
    for_lanes(0, tile.cols, [&](auto d, std::int64_t c) HWY_ATTR {
      const auto value = hn::LoadU(d, g + c);
      hn::StoreU(hn::Add(hn::LoadU(d, cols + c), hn::Mul(value, value)), d, cols + c);
    });
  }
  tensor.weight_squares[tile.index] = weight_squares;
  if (!matrix) return;
  float* const to = tensor.partials.cols_of(tile);
  for_lanes(0, tile.cols, [&](auto d, std::int64_t c) HWY_ATTR {
    hn::StoreU(hn::LoadU(d, cols + c), d, to + c);
  });
}

// Statistics of lines [begin, end) of a matrix from the sums of squared gradients.
void adafactor_lines(AdafactorTensor& tensor, std::int64_t begin, std::int64_t end) {
  const TensorView& shape = tensor.segment->tensor;
  double sums[kLinesToATask];
  tensor.partials.fold(
      begin, end, 0.0, [](double sum, float partial) { return sum + static_cast<double>(partial); },
      sums);
  float means[kLinesToATask];
  for (std::int64_t line = begin; line < end; ++line) {
    const auto count = static_cast<double>(line < shape.rows ? shape.cols : shape.rows);
    means[line - begin] = static_cast<float>(sums[line - begin] / count);
  }
  for_lanes(begin, end, [&](auto d, std::int64_t line) HWY_ATTR {
    const auto mean = hn::LoadU(d, means + (line - begin));
    const auto now = lerp(d, hn::LoadU(d, tensor.statistics + line), mean, tensor.rate);
    hn::StoreU(now, d, tensor.statistics + line);
  });
  for_lanes(std::max(begin, shape.rows), end, [&](auto d, std::int64_t line) HWY_ATTR {
    hn::StoreU(reciprocal_root(d, hn::LoadU(d, tensor.statistics + line)), d,
               tensor.col_roots + (line - shape.rows));
  });
}

// The update's row of a tile, from its gradient; in place.
HWY_INLINE void make_update(const AdafactorTensor& tensor, const Tile& tile, std::int64_t row,
                            float* g) {
  const bool matrix = is_matrix(tensor.segment->tensor);
  const float* const factors = matrix ? tensor.col_roots : tensor.statistics;
  float row_root = 0;
  if (matrix) row_root = 1.0f / std::sqrt(tensor.statistics[tile.row + row] / tensor.row_mean);
  for_lanes(0, tile.cols, [&](auto d, std::int64_t c) HWY_ATTR {
    auto root = hn::LoadU(d, factors + tile.col + c);
    root = matrix ? hn::Mul(hn::Set(d, row_root), root) : reciprocal_root(d, root);
    const auto most = hn::Set(d, kAdafactorMostRoot);
    root = hn::IfThenElse(hn::Gt(root, most), most, root);  // NaN stays
    hn::StoreU(hn::Mul(hn::LoadU(d, g + c), root), d, g + c);
  });
}

void adafactor_update_squares(const UpdateBuffers& buffers, AdafactorTensor& tensor,
                              const Tile& tile) {
  alignas(64) float g[TensorTiles::kCols];
  double squares = 0;
  for (std::int64_t row = 0; row < tile.rows; ++row) {
    load_gradient(buffers, tensor.grad_scale, element(tensor, tile, row), tile.cols, g);
    if (!is_matrix(tensor.segment->tensor)) {
      float* const statistics = tensor.statistics + tile.col;
      for_lanes(0, tile.cols, [&](auto d, std::int64_t c) HWY_ATTR {
        const auto value = hn::LoadU(d, g + c);
        const auto now = lerp(d, hn::LoadU(d, statistics + c), hn::Mul(value, value), tensor.rate);
        hn::StoreU(now, d, statistics + c);
      });
    }
    make_update(tensor, tile, row, g);
    squares += squares_of(g, tile.cols);
  }
  tensor.update_squares[tile.index] = squares;
}

void adafactor_apply(const UpdateBuffers& buffers, const AdafactorTensor& tensor,
                     const Tile& tile) {
  alignas(64) float g[TensorTiles::kCols];
  alignas(64) float w[TensorTiles::kCols];
  for (std::int64_t row = 0; row < tile.rows; ++row) {
    const std::int64_t at = element(tensor, tile, row);
    load_gradient(buffers, tensor.grad_scale, at, tile.cols, g);
    make_update(tensor, tile, row, g);
    const float* const master = load_master(buffers, at, tile.cols, w);
    for_lanes(0, tile.cols, [&](auto d, std::int64_t c) HWY_ATTR {
      auto value = hn::LoadU(d, master + c);
      value = hn::Sub(value, hn::Mul(hn::Set(d, tensor.lr_decay), value));
      const auto step = hn::Mul(hn::Set(d, tensor.step_size), hn::LoadU(d, g + c));
      hn::StoreU(hn::Sub(value, step), d, w + c);
    });
    store_master(buffers, w, at, tile.cols);
  }
}

}  // namespace sluice::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::host {
namespace {

HWY_EXPORT(adafactor_squares);
HWY_EXPORT(adafactor_lines);
HWY_EXPORT(adafactor_update_squares);
HWY_EXPORT(adafactor_apply);

AdafactorTensor lay_out(const ParameterSegment& segment, WorkspaceParts& parts) {
  AdafactorTensor tensor;
  tensor.segment = &segment;
  tensor.tiles = TensorTiles(segment.tensor);
  if (is_matrix(segment.tensor)) {
    tensor.partials = LinePartials(segment.tensor, parts);
    tensor.col_roots = parts.take<float>(segment.tensor.cols);
  }
  tensor.weight_squares = parts.take<double>(tensor.tiles.count());
  tensor.update_squares = parts.take<double>(tensor.tiles.count());
  return tensor;
}

double root_mean_square(const AdafactorTensor& tensor, const double* squares) {
  const auto elems = static_cast<double>(tensor.segment->end - tensor.segment->begin);
  return std::sqrt(sum_in_order(squares, tensor.tiles.count()) / elems);
}

float mean_of_rows(const AdafactorTensor& tensor) {
  if (!is_matrix(tensor.segment->tensor)) return 0;
  const std::int64_t rows = tensor.segment->tensor.rows;
  double sum = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    sum += static_cast<double>(tensor.statistics[row]);
  }
  const auto mean = static_cast<float>(sum / static_cast<double>(rows));
  return mean < kAdafactorEpsilon ? kAdafactorEpsilon : mean;
}

// Comparisons are such that NaN counts as small, as in torch.
float step_size(const OptimizerOptions& options, const AdafactorTensor& tensor, double lr,
                double step) {
  const double relative = std::min(lr, 1.0 / std::sqrt(step));
  const double size = root_mean_square(tensor, tensor.weight_squares);
  const double update = root_mean_square(tensor, tensor.update_squares) / options.clip_threshold;
  const double alpha = (size > options.relative_floor ? size : options.relative_floor) * relative;
  return static_cast<float>(alpha / (update > 1.0 ? update : 1.0));
}

}  // namespace

std::uint64_t adafactor_workspace_bytes(std::span<const ParameterSegment> segments) {
  std::uint64_t most = 0;
  for (const TensorBatch batch : tensor_batches(segments)) {
    WorkspaceParts parts(nullptr);
    for (const ParameterSegment& segment : batch) lay_out(segment, parts);
    most = std::max(most, parts.bytes());
  }
  return most;
}

void adafactor(const Parallel& parallel, const OptimizerOptions& options,
               const UpdateBuffers& buffers, std::span<const ParameterSegment> segments,
               const UpdateScalars& scalars, void* workspace) {
  const auto step = static_cast<double>(scalars.step);
  for (const TensorBatch batch : tensor_batches(segments)) {
    WorkspaceParts parts(workspace);
    std::vector<AdafactorTensor> tensors;
    for (const ParameterSegment& segment : batch) {
      AdafactorTensor& tensor = tensors.emplace_back(lay_out(segment, parts));
      tensor.statistics = static_cast<float*>(buffers.moment2) + segment.moment2_begin;
      tensor.lr_decay = scalars.lr * segment.lr_scale * segment.weight_decay;
      tensor.rate = static_cast<float>(std::pow(step, options.beta2_decay));
      tensor.grad_scale = scalars.grad_scale;
    }
    for_each_tile(parallel, tensors, [&](AdafactorTensor& tensor, const Tile& tile) {
      HWY_DYNAMIC_DISPATCH(adafactor_squares)(buffers, tensor, tile);
    });
    for_each_line_block(parallel, tensors,
                        [&](AdafactorTensor& tensor, std::int64_t begin, std::int64_t end) {
                          HWY_DYNAMIC_DISPATCH(adafactor_lines)(tensor, begin, end);
                        });
    for (AdafactorTensor& tensor : tensors) tensor.row_mean = mean_of_rows(tensor);
    for_each_tile(parallel, tensors, [&](AdafactorTensor& tensor, const Tile& tile) {
      HWY_DYNAMIC_DISPATCH(adafactor_update_squares)(buffers, tensor, tile);
    });
    for (AdafactorTensor& tensor : tensors) {
      const double lr = scalars.lr * tensor.segment->lr_scale;
      tensor.step_size = step_size(options, tensor, lr, step);
    }
    for_each_tile(parallel, tensors, [&](const AdafactorTensor& tensor, const Tile& tile) {
      HWY_DYNAMIC_DISPATCH(adafactor_apply)(buffers, tensor, tile);
    });
  }
}

}  // namespace sluice::host
#endif  // HWY_ONCE
