// SM3-II (optimizer.hpp has its arithmetic). An element's accumulator follows from those of its row
// and column, as the last step left them. It is computed twice: for the maxima of each tile's rows
// and columns, and when the element is updated. A maximum does not depend on the order, so neither
// do the bits.
#include "kernels/cuda/optimizer/rules.hpp"
#include "kernels/cuda/optimizer/tensor_tiles.cuh"
#include "kernels/cuda/optimizer/update_loop.cuh"

namespace sluice::kernels::cuda {
namespace {

// One tensor of a batch.
struct Sm3Tensor {
  TensorPlace place;
  float* accumulators = nullptr;  // matrix: rows, then columns; vector: elements
  // Maxima of a matrix's tiles, for their rows [across, rows] and columns [down, cols].
  float* row_partials = nullptr;
  float* col_partials = nullptr;
};
using Sm3Set = TensorSet<Sm3Tensor>;

// NaN never counts as larger, so it raises no accumulator.
__device__ __forceinline__ float larger(float best, float other) {
  return other > best ? other : best;
}

// Returns the smaller accumulator of row and column.
__device__ __forceinline__ float bound_of(float of_row, float of_col) {
  return of_col < of_row ? of_col : of_row;
}

// Maximum over half a warp; the first lane gets it.
__device__ __forceinline__ float lane_max(float best) {
  for (int width = kLanes / 2; width > 0; width /= 2) {
    best = larger(best, __shfl_down_sync(kAllLanes, best, width, kLanes));
  }
  return best;
}

// A block handles a tile and reads its gradients twice: across for the rows, down for the columns.
__global__ void __launch_bounds__(kTileThreads)
    maxima_kernel(const UpdateArrays arrays, const Sm3Set set, float grad_scale) {
  std::int64_t index = blockIdx.x;
  const Sm3Tensor& tensor = set.tensors[tensor_of<&TensorPlace::tiles_end>(set, index)];
  const TensorPlace& place = tensor.place;
  if (place.rows == 1) return;
  const Tile tile = TensorTiles({place.rows, place.cols})[index];
  const float* const of_rows = tensor.accumulators + tile.row;
  const float* const of_cols = tensor.accumulators + place.rows + tile.col;
  const auto accumulator = [&](std::int64_t row, std::int64_t col) {
    const std::int64_t at = place.begin + (tile.row + row) * place.cols + tile.col + col;
    const float g = __fmul_rn(gradient_at(arrays, at), grad_scale);
    return __fadd_rn(bound_of(of_rows[row], of_cols[col]), __fmul_rn(g, g));
  };
  for_tile_rows(tile.rows, [&](std::int64_t row, bool valid) {
    float best = 0;
    for (std::int64_t col = static_cast<int>(threadIdx.x) % kLanes; valid && col < tile.cols;
         col += kLanes) {
      best = larger(best, accumulator(row, col));
    }
    best = lane_max(best);
    if (valid && is_first_lane()) {
      tensor.row_partials[tile.across * place.rows + tile.row + row] = best;
    }
  });
  for (std::int64_t col = threadIdx.x; col < tile.cols; col += kTileThreads) {
    float best = 0;
    for (std::int64_t row = 0; row < tile.rows; ++row) best = larger(best, accumulator(row, col));
    tensor.col_partials[tile.down * place.cols + tile.col + col] = best;
  }
}

struct Sm3Step {
  static constexpr int kMoments = 1;
  static constexpr bool kMaster = true;
  struct Own {
    float* accumulators = nullptr;
    std::int64_t rows = 0, cols = 0;
    float lr = 0, lr_decay = 0;
  };
  float beta1, one_minus_beta1, grad_scale;

  __device__ float operator()(const Own& own, std::int64_t at, float grad, float& m, float&,
                              float w) const {
    const float g = __fmul_rn(grad, grad_scale), square = __fmul_rn(g, g);
    float accumulator;
    if (own.rows == 1) {
      accumulator = __fadd_rn(own.accumulators[at], square);
      own.accumulators[at] = accumulator;
    } else {
      const RowAndColumn place = row_and_column(at, own.cols);
      const float bound =
          bound_of(own.accumulators[place.row], own.accumulators[own.rows + place.col]);
      accumulator = __fadd_rn(bound, square);
    }
    const float root = __fsqrt_rn(__fadd_rn(accumulator, kSm3Epsilon));
    m = __fadd_rn(__fmul_rn(beta1, m), __fmul_rn(one_minus_beta1, __fdiv_rn(g, root)));
    w = __fsub_rn(w, __fmul_rn(own.lr_decay, w));
    return __fsub_rn(w, __fmul_rn(own.lr, m));
  }
};

// Reduces the tiles' maxima to new accumulators, one line per thread.
__global__ void __launch_bounds__(kTileThreads) fold_lines_kernel(const Sm3Set set) {
  std::int64_t block = blockIdx.x;
  const Sm3Tensor& tensor = set.tensors[tensor_of<&TensorPlace::line_blocks_end>(set, block)];
  const TensorPlace& place = tensor.place;
  const std::int64_t line = block * kLinesToABlock + threadIdx.x;
  if (line >= place.lines()) return;
  const TensorTiles tiles({place.rows, place.cols});
  const bool is_row = line < place.rows;
  const std::int64_t count = is_row ? tiles.across() : tiles.down();
  const std::int64_t stride = is_row ? place.rows : place.cols;
  const float* const partials =
      is_row ? tensor.row_partials + line : tensor.col_partials + (line - place.rows);
  float best = partials[0];
  for (std::int64_t i = 1; i < count; ++i) best = larger(best, partials[i * stride]);
  tensor.accumulators[line] = best;
}

Sm3Tensor lay_out(const ParameterSegment& segment, WorkspaceParts& parts) {
  const TensorTiles tiles(segment.tensor);
  Sm3Tensor tensor;
  if (is_matrix(segment.tensor)) {
    tensor.row_partials = parts.take<float>(tiles.across() * segment.tensor.rows);
    tensor.col_partials = parts.take<float>(tiles.down() * segment.tensor.cols);
  }
  return tensor;
}

}  // namespace

std::uint64_t sm3_workspace_bytes(std::span<const ParameterSegment> segments) {
  return most_workspace_bytes<Sm3Tensor>(segments, lay_out);
}

void sm3(StreamHandle stream, const OptimizerOptions& options, const UpdateBuffers& buffers,
         std::span<const ParameterSegment> segments, const UpdateScalars& scalars,
         void* workspace) {
  const UpdateArrays arrays = update_arrays(options, buffers, scalars);
  const Sm3Step rule{static_cast<float>(options.beta1), static_cast<float>(1.0 - options.beta1),
                     scalars.grad_scale};
  float* const accumulators = static_cast<float*>(buffers.moment2);
  for_tensor_batches<Sm3Tensor>(segments, [&](std::span<const ParameterSegment> batch) {
    WorkspaceParts parts(workspace);
    Sm3Set set;
    for (const ParameterSegment& segment : batch) {
      Sm3Tensor tensor = lay_out(segment, parts);
      tensor.accumulators = accumulators + segment.moment2_begin;
      set.add(tensor, segment);
    }
    const bool has_matrix = set.line_blocks() > 0;
    const dim3 block(kTileThreads);
    if (has_matrix) {
      launch(stream, grid_of(set.tiles()), block, 0, maxima_kernel, arrays, set,
             scalars.grad_scale);
    }
    run_update(stream, arrays, rule, batch, [&](const ParameterSegment& segment) {
      const float lr = scalars.lr * segment.lr_scale;
      return Sm3Step::Own{accumulators + segment.moment2_begin, segment.tensor.rows,
                          segment.tensor.cols, lr, lr * segment.weight_decay};
    });
    if (has_matrix) {
      launch(stream, grid_of(set.line_blocks()), block, 0, fold_lines_kernel, set);
    }
  });
}

}  // namespace sluice::kernels::cuda
