// Adafactor (optimizer.hpp has its arithmetic) in three passes over memory. Fewer are not possible:
// the statistics of an element's row and column need all gradients, and the update's RMS, by which
// it is clipped, needs the statistics.
//   1  sums of squares of the gradients (by row and by column) and of the parameter
//   2  sum of squares of the update
//   3  the update, computed again, is applied
// Each pass works on tiles in parallel. Tiles write partial sums to their own memory, and
// reductions add them in the order of tiles (tensor_tiles.hpp), so the bits do not depend on
// threads. Passes 2 and 3 multiply by the reciprocal root of an element's row and column where the
// formula has a division and a square root: rows + cols of these in place of rows * cols.
#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "kernels/host/optimizer/rules.hpp"
#include "kernels/host/optimizer/tensor_tiles.hpp"
#include "kernels/host/optimizer/update_arrays.hpp"
#include "kernels/host/parallel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/host/optimizer/adafactor.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/host/optimizer/stage_simd.hpp"

#ifndef SLUICE_KERNELS_HOST_OPTIMIZER_ADAFACTOR_TENSOR
#define SLUICE_KERNELS_HOST_OPTIMIZER_ADAFACTOR_TENSOR
namespace sluice::kernels::host {

// One tensor of a batch, and its part of the workspace.
struct AdafactorTensor {
  const ParameterSegment* segment = nullptr;
  TensorTiles tiles;
  float* statistics = nullptr;       // matrix: rows, then columns; vector: elements
  LinePartials partials;             // matrix: sums of squared gradients
  float* col_roots = nullptr;        // matrix: 1 / sqrt(column's mean)
  double* weight_squares = nullptr;  // one sum per tile
  double* update_squares = nullptr;  // one sum per tile
  float row_mean = 0, step_size = 0, lr_decay = 0;
  // Values of the step: the rate at which statistics forget, and the factor of gradients.
  float rate = 0, grad_scale = 1;
};

}  // namespace sluice::kernels::host
#endif

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::host::HWY_NAMESPACE {

// torch's lerp, in the form that is exact at the nearer end.
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

// Index in the chunk of the first element of tile row `row`.
HWY_INLINE std::int64_t element(const AdafactorTensor& tensor, const Tile& tile, std::int64_t row) {
  return tensor.segment->begin + (tile.row + row) * tensor.segment->tensor.cols + tile.col;
}

// Returns the fp32 sum of squares of use(d, c, g) over the gradients g of a row of a tile.
template <class Use>
HWY_INLINE float gradient_squares(const UpdateArrays& arrays, const AdafactorTensor& tensor,
                                  std::int64_t at, std::int64_t count, const Use& use) {
  alignas(64) float room[TensorTiles::kCols];
  float sum[1];
  with_grad(arrays, at, count, room, [&](const auto& grad) HWY_ATTR {
    lane_sums(count, sum, [&](auto d, std::int64_t c, auto* terms) HWY_ATTR {
      const auto number = use(d, c, hn::Mul(grad.load(d, c), hn::Set(d, tensor.grad_scale)));
      terms[0] = hn::Mul(number, number);
    });
  });
  return sum[0];
}

// Returns the fp32 sum of squares of a row of the parameter, in lanes like the gradients'.
HWY_INLINE float master_squares(const UpdateArrays& arrays, std::int64_t at, std::int64_t count) {
  float sum[1];
  with_master(arrays, at, kOnlyRead, [&](const auto& master) HWY_ATTR {
    lane_sums(count, sum, [&](auto d, std::int64_t c, auto* terms) HWY_ATTR {
      const auto w = master.load(d, c);
      terms[0] = hn::Mul(w, w);
    });
  });
  return sum[0];
}

// Pass 1 of a tile. A vector needs only the parameter's sum; its statistics are elementwise.
void adafactor_squares(const UpdateArrays& arrays, AdafactorTensor& tensor, const Tile& tile) {
  const bool matrix = is_matrix(tensor.segment->tensor);
  alignas(64) float cols[TensorTiles::kCols] = {};
  double weight_squares = 0;
  for (std::int64_t row = 0; row < tile.rows; ++row) {
    const std::int64_t at = element(tensor, tile, row);
    weight_squares += static_cast<double>(master_squares(arrays, at, tile.cols));
    if (!matrix) continue;
    tensor.partials.rows_of(tile)[row] = gradient_squares(
        arrays, tensor, at, tile.cols, [&](auto d, std::int64_t c, auto g) HWY_ATTR {
          hn::StoreU(hn::Add(hn::LoadU(d, cols + c), hn::Mul(g, g)), d, cols + c);
          return g;
        });
  }
  tensor.weight_squares[tile.index] = weight_squares;
  if (matrix) std::copy_n(cols, tile.cols, tensor.partials.cols_of(tile));
}

// Updates the statistics of lines [begin, end) of a matrix from the sums of squared gradients.
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
  // Columns are used once per row, so their reciprocal roots are stored.
  for_lanes(std::max(begin, shape.rows), end, [&](auto d, std::int64_t line) HWY_ATTR {
    hn::StoreU(reciprocal_root(d, hn::LoadU(d, tensor.statistics + line)), d,
               tensor.col_roots + (line - shape.rows));
  });
}

// Limits a reciprocal root to 2^23, the root of torch's epsilon.
template <class D>
HWY_INLINE hn::Vec<D> at_most(D d, hn::Vec<D> root) {
  const auto most = hn::Set(d, kAdafactorMostRoot);
  return hn::IfThenElse(hn::Gt(root, most), most, root);  // keeps NaN
}

// The update of one row of a matrix's tile, as a function of (d, c, g).
struct MatrixUpdate {
  const float* col_roots;
  float row_root;

  MatrixUpdate(const AdafactorTensor& tensor, const Tile& tile, std::int64_t row)
      : col_roots(tensor.col_roots + tile.col),
        row_root(1.0f / std::sqrt(tensor.statistics[tile.row + row] / tensor.row_mean)) {}
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, std::int64_t c, hn::Vec<D> g) const {
    const auto root = hn::Mul(hn::Set(d, row_root), hn::LoadU(d, col_roots + c));
    return hn::Mul(g, at_most(d, root));
  }
};

// The update of a vector, with statistics per element.
struct VectorUpdate {
  const float* statistics;

  VectorUpdate(const AdafactorTensor& tensor, const Tile& tile, std::int64_t)
      : statistics(tensor.statistics + tile.col) {}
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, std::int64_t c, hn::Vec<D> g) const {
    return hn::Mul(g, at_most(d, reciprocal_root(d, hn::LoadU(d, statistics + c))));
  }
};

// Pass 2 of a tile. For a vector it also updates the statistics, which pass 1 left alone.
void adafactor_update_squares(const UpdateArrays& arrays, AdafactorTensor& tensor,
                              const Tile& tile) {
  double squares = 0;
  for (std::int64_t row = 0; row < tile.rows; ++row) {
    const std::int64_t at = element(tensor, tile, row);
    if (is_matrix(tensor.segment->tensor)) {
      const MatrixUpdate update(tensor, tile, row);
      squares += static_cast<double>(gradient_squares(arrays, tensor, at, tile.cols, update));
      continue;
    }
    const VectorUpdate update(tensor, tile, row);
    float* const statistics = tensor.statistics + tile.col;
    squares += static_cast<double>(gradient_squares(
        arrays, tensor, at, tile.cols, [&](auto d, std::int64_t c, auto g) HWY_ATTR {
          const auto before = hn::LoadU(d, statistics + c);
          hn::StoreU(lerp(d, before, hn::Mul(g, g), tensor.rate), d, statistics + c);
          return update(d, c, g);
        }));
  }
  tensor.update_squares[tile.index] = squares;
}

// Pass 3 of a tile: weight decay, then the step.
template <class Update>
HWY_INLINE void apply(const UpdateArrays& arrays, const AdafactorTensor& tensor, const Tile& tile) {
  alignas(64) float room[TensorTiles::kCols];
  const float grad_scale = tensor.grad_scale, lr_decay = tensor.lr_decay;
  const float step_size = tensor.step_size;
  for (std::int64_t row = 0; row < tile.rows; ++row) {
    const std::int64_t at = element(tensor, tile, row);
    const Update update(tensor, tile, row);
    with_grad(arrays, at, tile.cols, room, [&](const auto& grad) HWY_ATTR {
      with_master(arrays, at, tile.cols, [&](const auto& master) HWY_ATTR {
        for_lanes(0, tile.cols, [=](auto d, std::int64_t c) HWY_ATTR {
          const auto g = hn::Mul(grad.load(d, c), hn::Set(d, grad_scale));
          auto w = master.load(d, c);
          w = hn::Sub(w, hn::Mul(hn::Set(d, lr_decay), w));
          w = hn::Sub(w, hn::Mul(hn::Set(d, step_size), update(d, c, g)));
          master.store(d, w, c);
        });
      });
    });
  }
}

void adafactor_apply(const UpdateArrays& arrays, const AdafactorTensor& tensor, const Tile& tile) {
  if (is_matrix(tensor.segment->tensor)) {
    apply<MatrixUpdate>(arrays, tensor, tile);
  } else {
    apply<VectorUpdate>(arrays, tensor, tile);
  }
}

}  // namespace sluice::kernels::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels::host {
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

// The comparisons treat NaN as small, as torch does.
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
  return batch_workspace_bytes(segments, lay_out);
}

void adafactor(const Parallel& parallel, const OptimizerOptions& options,
               const UpdateBuffers& buffers, std::span<const ParameterSegment> segments,
               const UpdateScalars& scalars, void* workspace) {
  const UpdateArrays arrays = update_arrays(options, buffers, scalars);
  const auto step = static_cast<double>(scalars.step);
  for_each_batch(segments, workspace, lay_out, [&](std::vector<AdafactorTensor>& tensors) {
    for (AdafactorTensor& tensor : tensors) {
      const ParameterSegment& segment = *tensor.segment;
      tensor.statistics = static_cast<float*>(buffers.moment2) + segment.moment2_begin;
      tensor.lr_decay = scalars.lr * segment.lr_scale * segment.weight_decay;
      tensor.rate = static_cast<float>(std::pow(step, options.beta2_decay));
      tensor.grad_scale = scalars.grad_scale;
    }
    for_each_tile(parallel, tensors, [&](AdafactorTensor& tensor, const Tile& tile) {
      HWY_DYNAMIC_DISPATCH(adafactor_squares)(arrays, tensor, tile);
    });
    for_each_block(
        parallel, tensors.size(), [&](std::size_t i) { return tensors[i].partials.lines(); },
        kLinesToATask,
        [&](std::size_t i, std::int64_t begin, std::int64_t end) {
          HWY_DYNAMIC_DISPATCH(adafactor_lines)(tensors[i], begin, end);
        });
    for (AdafactorTensor& tensor : tensors) tensor.row_mean = mean_of_rows(tensor);
    for_each_tile(parallel, tensors, [&](AdafactorTensor& tensor, const Tile& tile) {
      HWY_DYNAMIC_DISPATCH(adafactor_update_squares)(arrays, tensor, tile);
    });
    for (AdafactorTensor& tensor : tensors) {
      const double lr = scalars.lr * tensor.segment->lr_scale;
      tensor.step_size = step_size(options, tensor, lr, step);
    }
    for_each_tile(parallel, tensors, [&](const AdafactorTensor& tensor, const Tile& tile) {
      HWY_DYNAMIC_DISPATCH(adafactor_apply)(arrays, tensor, tile);
    });
  });
}

}  // namespace sluice::kernels::host
#endif  // HWY_ONCE
