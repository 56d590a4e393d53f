// SM3-II (optimizer.hpp has its arithmetic), one pass over memory: an element's accumulator is made
// from those of its row and column as the last step left them, and used at once; tiles leave the
// largest accumulator of each line.
#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "kernels/host/optimizer/rules.hpp"
#include "kernels/host/optimizer/tensor_tiles.hpp"
#include "kernels/host/parallel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/host/optimizer/sm3.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/host/optimizer/chunk_rows.hpp"

#ifndef SLUICE_KERNELS_HOST_OPTIMIZER_SM3_TENSOR
#define SLUICE_KERNELS_HOST_OPTIMIZER_SM3_TENSOR
namespace sluice::host {

// What keeps a root of an accumulator that is zero from being one.
inline constexpr float kSm3Epsilon = 1e-30f;

// One tensor of a batch.
struct Sm3Tensor {
  const ParameterSegment* segment = nullptr;
  TensorTiles tiles;
  float* accumulators = nullptr;  // matrix: rows, then columns; vector: elements
  LinePartials partials;          // matrix: maxima
  float lr = 0, lr_decay = 0;
  float beta1 = 0, one_minus_beta1 = 0, grad_scale = 1;
};

}  // namespace sluice::host
#endif

HWY_BEFORE_NAMESPACE();
namespace sluice::host::HWY_NAMESPACE {

// NaN is never larger: it raises no accumulator.
template <class D>
HWY_INLINE hn::Vec<D> larger(D, hn::Vec<D> best, hn::Vec<D> other) {
  return hn::IfThenElse(hn::Gt(other, best), other, best);
}

// The largest of numbers that are not below zero; 0 where there is none. Which is met first cannot
// be told from the result, so the width of a vector cannot either.
HWY_INLINE float largest(const float* numbers, std::int64_t count) {
  const WideTag wide;
  const auto step = static_cast<std::int64_t>(hn::Lanes(wide));
  auto best = hn::Zero(wide);
  std::int64_t i = 0;
  for (; i + step <= count; i += step) best = larger(wide, best, hn::LoadU(wide, numbers + i));
  float lanes[hn::MaxLanes(WideTag())];
  hn::StoreU(best, wide, lanes);
  float most = 0;
  for (std::int64_t lane = 0; lane < step; ++lane) most = std::max(most, lanes[lane]);
  for (; i < count; ++i) most = numbers[i] > most ? numbers[i] : most;
  return most;
}

// One vector: the step from gradient, momentum and accumulator; the new momentum.
template <class D>
HWY_INLINE hn::Vec<D> momentum(D d, const Sm3Tensor& tensor, hn::Vec<D> g, hn::Vec<D> m,
                               hn::Vec<D> accumulator) {
  const auto root = hn::Sqrt(hn::Add(accumulator, hn::Set(d, kSm3Epsilon)));
  const auto scaled = hn::Mul(hn::Set(d, tensor.one_minus_beta1), hn::Div(g, root));
  return hn::Add(hn::Mul(hn::Set(d, tensor.beta1), m), scaled);
}

// Row `row` of a tile: accumulators into `accumulators`, the rest in place.
HWY_INLINE void update_row(const UpdateBuffers& buffers, const Sm3Tensor& tensor, const Tile& tile,
                           std::int64_t row, float* accumulators) {
  const TensorView& shape = tensor.segment->tensor;
  const bool matrix = is_matrix(shape);
  const std::int64_t at = tensor.segment->begin + (tile.row + row) * shape.cols + tile.col;
  alignas(64) float g[TensorTiles::kCols];
  alignas(64) float w[TensorTiles::kCols];
  load_gradient(buffers, tensor.grad_scale, at, tile.cols, g);
  const float* const master = load_master(buffers, at, tile.cols, w);
  float* const moment = static_cast<float*>(buffers.moment1) + at;
  const float of_row = matrix ? tensor.accumulators[tile.row + row] : 0.0f;
  const float* const of_cols = tensor.accumulators + (matrix ? shape.rows : 0) + tile.col;
  for_lanes(0, tile.cols, [&](auto d, std::int64_t c) HWY_ATTR {
    const auto gradient = hn::LoadU(d, g + c);
    auto accumulator = hn::LoadU(d, of_cols + c);
    if (matrix) {
      const auto bound = hn::Set(d, of_row);
      accumulator = hn::IfThenElse(hn::Lt(accumulator, bound), accumulator, bound);
    }
    accumulator = hn::Add(accumulator, hn::Mul(gradient, gradient));
    hn::StoreU(accumulator, d, accumulators + c);
    const auto m = momentum(d, tensor, gradient, hn::LoadU(d, moment + c), accumulator);
    hn::StoreU(m, d, moment + c);
    auto value = hn::LoadU(d, master + c);
    value = hn::Sub(value, hn::Mul(hn::Set(d, tensor.lr_decay), value));
    hn::StoreU(hn::Sub(value, hn::Mul(hn::Set(d, tensor.lr), m)), d, w + c);
  });
  store_master(buffers, w, at, tile.cols);
}

void sm3_tile(const UpdateBuffers& buffers, Sm3Tensor& tensor, const Tile& tile) {
  if (!is_matrix(tensor.segment->tensor)) {
    update_row(buffers, tensor, tile, 0, tensor.accumulators + tile.col);
    return;
  }
  alignas(64) float accumulators[TensorTiles::kCols];
  alignas(64) float cols[TensorTiles::kCols] = {};
  for (std::int64_t row = 0; row < tile.rows; ++row) {
    update_row(buffers, tensor, tile, row, accumulators);
    tensor.partials.rows_of(tile)[row] = largest(accumulators, tile.cols);
    for_lanes(0, tile.cols, [&](auto d, std::int64_t c) HWY_ATTR {
      const auto most = larger(d, hn::LoadU(d, cols + c), hn::LoadU(d, accumulators + c));
      hn::StoreU(most, d, cols + c);
    });
  }
  std::copy_n(cols, tile.cols, tensor.partials.cols_of(tile));
}

}  // namespace sluice::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::host {
namespace {

HWY_EXPORT(sm3_tile);

Sm3Tensor lay_out(const ParameterSegment& segment, WorkspaceParts& parts) {
  Sm3Tensor tensor;
  tensor.segment = &segment;
  tensor.tiles = TensorTiles(segment.tensor);
  if (is_matrix(segment.tensor)) tensor.partials = LinePartials(segment.tensor, parts);
  return tensor;
}

}  // namespace

std::uint64_t sm3_workspace_bytes(std::span<const ParameterSegment> segments) {
  std::uint64_t most = 0;
  for (const TensorBatch batch : tensor_batches(segments)) {
    WorkspaceParts parts(nullptr);
    for (const ParameterSegment& segment : batch) lay_out(segment, parts);
    most = std::max(most, parts.bytes());
  }
  return most;
}

void sm3(const Parallel& parallel, const OptimizerOptions& options, const UpdateBuffers& buffers,
         std::span<const ParameterSegment> segments, const UpdateScalars& scalars,
         void* workspace) {
  for (const TensorBatch batch : tensor_batches(segments)) {
    WorkspaceParts parts(workspace);
    std::vector<Sm3Tensor> tensors;
    for (const ParameterSegment& segment : batch) {
      Sm3Tensor& tensor = tensors.emplace_back(lay_out(segment, parts));
      tensor.accumulators = static_cast<float*>(buffers.moment2) + segment.moment2_begin;
      tensor.lr = scalars.lr * segment.lr_scale;
      tensor.lr_decay = tensor.lr * segment.weight_decay;
      tensor.beta1 = static_cast<float>(options.beta1);
      tensor.one_minus_beta1 = static_cast<float>(1.0 - options.beta1);
      tensor.grad_scale = scalars.grad_scale;
    }
    for_each_tile(parallel, tensors, [&](Sm3Tensor& tensor, const Tile& tile) {
      HWY_DYNAMIC_DISPATCH(sm3_tile)(buffers, tensor, tile);
    });
    for_each_line_block(
        parallel, tensors, [](const Sm3Tensor& tensor, std::int64_t begin, std::int64_t end) {
          tensor.partials.fold(
              begin, end, 0.0f, [](float best, float most) { return std::max(best, most); },
              tensor.accumulators + begin);
        });
  }
}

}  // namespace sluice::host
#endif  // HWY_ONCE
