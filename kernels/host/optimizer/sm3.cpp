// SM3-II (optimizer.hpp has its arithmetic) in one pass over memory.
//
// An element's accumulator is computed from those of its row and column, as the last step left
// them, and used at once. Pieces of a matrix are runs of elements that may begin and end inside
// rows, because 8-bit moments are blocks of elements. Each piece records the largest new
// accumulator of the rows and columns that it met; a reduction then takes the maximum over pieces.
// A maximum does not depend on the order, so neither do the bits. The cost per element is one
// square root and one division; the reductions add (rows + pieces * cols) comparisons.
#include <algorithm>
#include <cmath>

#include "kernels/host/optimizer/rules.hpp"
#include "kernels/host/optimizer/tensor_tiles.hpp"
#include "kernels/host/optimizer/update_arrays.hpp"
#include "kernels/host/parallel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/host/optimizer/sm3.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/host/optimizer/stage_simd.hpp"

#ifndef SLUICE_KERNELS_HOST_OPTIMIZER_SM3_TENSOR
#define SLUICE_KERNELS_HOST_OPTIMIZER_SM3_TENSOR
namespace sluice::kernels::host {

// One tensor of a batch.
struct Sm3Tensor {
  const ParameterSegment* segment = nullptr;
  std::int64_t elems = 0, piece_elems = 0, pieces = 0;
  float* accumulators = nullptr;  // matrix: rows, then columns; vector: elements
  // Maxima of a matrix. A row lies in one piece or in two: [2, rows]. The second entry counts if
  // the row ends in another piece than it begins in. Columns: [pieces, cols].
  float* row_partials = nullptr;
  float* col_partials = nullptr;
  float lr = 0, lr_decay = 0;
  float beta1 = 0, one_minus_beta1 = 0, grad_scale = 1;

  // Whether the row lies in two pieces.
  bool is_parted(std::int64_t row) const {
    const std::int64_t cols = segment->tensor.cols;
    return row * cols / piece_elems != ((row + 1) * cols - 1) / piece_elems;
  }
};

}  // namespace sluice::kernels::host
#endif

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::host::HWY_NAMESPACE {

// NaN never counts as larger, so it raises no accumulator.
template <class D>
HWY_INLINE hn::Vec<D> larger(D, hn::Vec<D> best, hn::Vec<D> other) {
  return hn::IfThenElse(hn::Gt(other, best), other, best);
}

// Returns the largest of `best` and of numbers that are not negative.
HWY_INLINE float largest(float best, const float* numbers, std::int64_t count) {
  const WideTag wide;
  const auto step = static_cast<std::int64_t>(hn::Lanes(wide));
  auto bests = hn::Set(wide, best);
  std::int64_t i = 0;
  for (; i + step <= count; i += step) bests = larger(wide, bests, hn::LoadU(wide, numbers + i));
  float lanes[hn::MaxLanes(WideTag())];
  hn::StoreU(bests, wide, lanes);
  for (std::int64_t lane = 0; lane < step; ++lane) best = std::max(best, lanes[lane]);
  for (; i < count; ++i) best = numbers[i] > best ? numbers[i] : best;
  return best;
}

// Walks through a piece of a matrix in element order, one row or part of a row at a time.
class RowRuns {
 public:
  RowRuns(const Sm3Tensor& tensor, std::int64_t piece)
      : tensor_(tensor),
        rows_(tensor.segment->tensor.rows),
        cols_(tensor.segment->tensor.cols),
        row_(piece * tensor.piece_elems / cols_),
        col_(piece * tensor.piece_elems % cols_),
        began_here_(col_ == 0),
        col_most_(tensor.col_partials + piece * cols_) {
    std::fill_n(col_most_, cols_, 0.0f);
  }

  // bounds[i] = the smaller accumulator of row and column, for the next `count` elements.
  HWY_INLINE void bounds(float* to, std::int64_t count) const {
    std::int64_t row = row_, col = col_;
    while (count > 0) {
      const std::int64_t run = std::min(count, cols_ - col);
      const float of_row = tensor_.accumulators[row];
      const float* const of_cols = tensor_.accumulators + rows_ + col;
      for_lanes(0, run, [=](auto d, std::int64_t i) HWY_ATTR {
        const auto bound = hn::Set(d, of_row), of_col = hn::LoadU(d, of_cols + i);
        hn::StoreU(hn::IfThenElse(hn::Lt(of_col, bound), of_col, bound), d, to + i);
      });
      to += run;
      count -= run;
      col = 0;
      ++row;
    }
  }

  // Records the maxima of the next `count` accumulators and moves past them.
  HWY_INLINE void take(const float* accumulators, std::int64_t count) {
    while (count > 0) {
      const std::int64_t run = std::min(count, cols_ - col_);
      row_most_ = largest(row_most_, accumulators, run);
      float* const most = col_most_ + col_;
      for_lanes(0, run, [=](auto d, std::int64_t i) HWY_ATTR {
        const auto now = larger(d, hn::LoadU(d, most + i), hn::LoadU(d, accumulators + i));
        hn::StoreU(now, d, most + i);
      });
      accumulators += run;
      count -= run;
      col_ += run;
      if (col_ == cols_) end_row();
    }
  }
  void end_piece() {
    if (col_ > 0) end_row();
  }

 private:
  // A row that began in this piece has the first partial, a continued row the second.
  void end_row() {
    tensor_.row_partials[began_here_ ? row_ : rows_ + row_] = row_most_;
    row_most_ = 0;
    began_here_ = true;
    col_ = 0;
    ++row_;
  }

  const Sm3Tensor& tensor_;
  std::int64_t rows_, cols_, row_, col_;
  bool began_here_;
  float row_most_ = 0;
  float* col_most_;
};

// Updates parameters, momenta and accumulators of a stage. On entry `accumulators` holds the old
// values or their bounds. Arguments are passed by value, because stores could alias references.
template <class GradOf, class Master, class Moment>
HWY_NOINLINE void sm3_stage(const Sm3Tensor tensor, const GradOf grad, const Master master,
                            const Moment moment, float* accumulators, std::int64_t count) {
  for_lanes(0, count, [=](auto d, std::int64_t i) HWY_ATTR {
    const auto g = hn::Mul(grad.load(d, i), hn::Set(d, tensor.grad_scale));
    const auto accumulator = hn::Add(hn::LoadU(d, accumulators + i), hn::Mul(g, g));
    hn::StoreU(accumulator, d, accumulators + i);
    const auto root = hn::Sqrt(hn::Add(accumulator, hn::Set(d, kSm3Epsilon)));
    const auto scaled = hn::Mul(hn::Set(d, tensor.one_minus_beta1), hn::Div(g, root));
    const auto m = hn::Add(hn::Mul(hn::Set(d, tensor.beta1), moment.load(d, i)), scaled);
    moment.store(d, m, i);
    auto w = master.load(d, i);
    w = hn::Sub(w, hn::Mul(hn::Set(d, tensor.lr_decay), w));
    master.store(d, hn::Sub(w, hn::Mul(hn::Set(d, tensor.lr), m)), i);
  });
}

// Updates elements [begin, end) of the tensor. before(first, count) returns the accumulators of a
// stage, and after(accumulators, count) takes them back.
template <class Before, class After>
HWY_INLINE void sm3_range(const UpdateArrays& arrays, const Sm3Tensor& tensor, std::int64_t begin,
                          std::int64_t end, const Before& before, const After& after) {
  StageRoom room;
  for (std::int64_t i = begin; i < end; i += kStageElems) {
    const std::int64_t count = std::min(kStageElems, end - i), at = tensor.segment->begin + i;
    const std::uint64_t key = tensor.segment->first_key + static_cast<std::uint64_t>(i);
    float* const accumulators = before(i, count);
    with_grad(arrays, at, count, room.grad, [&](const auto& grad) HWY_ATTR {
      with_master(arrays, at, count, [&](const auto& master) HWY_ATTR {
        with_moments<1>(arrays, at, count, key, room,
                        [&](const auto& moment, const auto&) HWY_ATTR {
                          sm3_stage(tensor, grad, master, moment, accumulators, count);
                        });
      });
    });
    after(accumulators, count);
  }
}

// A vector keeps an accumulator per element and updates them in place.
void sm3_piece(const UpdateArrays& arrays, const Sm3Tensor& tensor, std::int64_t piece) {
  const std::int64_t begin = piece * tensor.piece_elems;
  const std::int64_t end = std::min(tensor.elems, begin + tensor.piece_elems);
  if (!is_matrix(tensor.segment->tensor)) {
    sm3_range(
        arrays, tensor, begin, end,
        [&](std::int64_t i, std::int64_t) { return tensor.accumulators + i; },
        [](const float*, std::int64_t) {});
    return;
  }
  RowRuns runs(tensor, piece);
  alignas(64) float accumulators[kStageElems];
  sm3_range(
      arrays, tensor, begin, end,
      [&](std::int64_t, std::int64_t count) HWY_ATTR {
        runs.bounds(accumulators, count);
        return accumulators;
      },
      [&](const float* now, std::int64_t count) HWY_ATTR { runs.take(now, count); });
  runs.end_piece();
}

}  // namespace sluice::kernels::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels::host {
namespace {

HWY_EXPORT(sm3_piece);

Sm3Tensor lay_out(const ParameterSegment& segment, WorkspaceParts& parts) {
  const TensorView& shape = segment.tensor;
  Sm3Tensor tensor;
  tensor.segment = &segment;
  tensor.elems = shape.rows * shape.cols;
  tensor.piece_elems = 16384;
  if (is_matrix(shape)) {
    // A row lies in at most two pieces, and the columns' maxima are at most 1/16 of the elements.
    // Stages begin at multiples of 256 elements.
    const std::int64_t least = std::max<std::int64_t>(65536, 16 * shape.cols);
    tensor.piece_elems = (least + 255) / 256 * 256;
  }
  tensor.pieces = (tensor.elems + tensor.piece_elems - 1) / tensor.piece_elems;
  if (is_matrix(shape)) {
    tensor.row_partials = parts.take<float>(2 * shape.rows);
    tensor.col_partials = parts.take<float>(tensor.pieces * shape.cols);
  }
  return tensor;
}

// Reduces the partial maxima of lines [begin, end) (rows, then columns) to new accumulators.
void fold_lines(const Sm3Tensor& tensor, std::int64_t begin, std::int64_t end) {
  const std::int64_t rows = tensor.segment->tensor.rows, cols = tensor.segment->tensor.cols;
  for (std::int64_t row = begin; row < std::min(end, rows); ++row) {
    const float most = tensor.row_partials[row];
    tensor.accumulators[row] =
        tensor.is_parted(row) ? std::max(most, tensor.row_partials[rows + row]) : most;
  }
  float* const of_cols = tensor.accumulators + rows;
  begin = std::max(begin, rows) - rows;
  end -= rows;
  for (std::int64_t piece = 0; piece < tensor.pieces; ++piece) {
    const float* const partials = tensor.col_partials + piece * cols;
    for (std::int64_t col = begin; col < end; ++col) {
      of_cols[col] = piece == 0 ? partials[col] : std::max(of_cols[col], partials[col]);
    }
  }
}

}  // namespace

std::uint64_t sm3_workspace_bytes(std::span<const ParameterSegment> segments) {
  return batch_workspace_bytes(segments, lay_out);
}

void sm3(const Parallel& parallel, const OptimizerOptions& options, const UpdateBuffers& buffers,
         std::span<const ParameterSegment> segments, const UpdateScalars& scalars,
         void* workspace) {
  const UpdateArrays arrays = update_arrays(options, buffers, scalars);
  for_each_batch(segments, workspace, lay_out, [&](std::vector<Sm3Tensor>& tensors) {
    for (Sm3Tensor& tensor : tensors) {
      const ParameterSegment& segment = *tensor.segment;
      tensor.accumulators = static_cast<float*>(buffers.moment2) + segment.moment2_begin;
      tensor.lr = scalars.lr * segment.lr_scale;
      tensor.lr_decay = tensor.lr * segment.weight_decay;
      tensor.beta1 = static_cast<float>(options.beta1);
      tensor.one_minus_beta1 = static_cast<float>(1.0 - options.beta1);
      tensor.grad_scale = scalars.grad_scale;
    }
    const auto pieces = [&](std::size_t i) { return tensors[i].pieces; };
    for_each_piece(parallel, tensors.size(), pieces, [&](std::size_t i, std::int64_t piece) {
      HWY_DYNAMIC_DISPATCH(sm3_piece)(arrays, tensors[i], piece);
    });
    const auto lines = [&](std::size_t i) {
      const TensorView& shape = tensors[i].segment->tensor;
      return is_matrix(shape) ? shape.rows + shape.cols : 0;
    };
    for_each_block(parallel, tensors.size(), lines, kLinesToATask,
                   [&](std::size_t i, std::int64_t begin, std::int64_t end) {
                     fold_lines(tensors[i], begin, end);
                   });
  });
}

}  // namespace sluice::kernels::host
#endif  // HWY_ONCE
