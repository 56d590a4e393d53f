// Adafactor (optimizer.hpp has its arithmetic) with the passes of
// kernels/host/optimizer/adafactor.cpp: sums of squares by tiles; the statistics of lines; the
// update's sum of squares by tiles; the step. The scalars between passes are computed by one block
// per tensor, so no pass waits for the host. Sums have the order of the host, hence its bits.
#include <cmath>

#include "kernels/cuda/optimizer/rules.hpp"
#include "kernels/cuda/optimizer/tensor_tiles.cuh"
#include "kernels/cuda/optimizer/update_loop.cuh"

namespace sluice::kernels::cuda {
namespace {

// One tensor of a batch, and its part of the workspace.
struct AdafactorTensor {
  TensorPlace place;
  float* statistics = nullptr;  // matrix: rows, then columns; vector: elements
  // Matrix: a tile's sums of squared gradients for its rows [across, rows] and columns [down,
  // cols].
  float* row_partials = nullptr;
  float* col_partials = nullptr;
  float* row_roots = nullptr;        // matrix: 1 / sqrt(row's mean / mean of rows)
  float* col_roots = nullptr;        // matrix: 1 / sqrt(column's mean)
  double* weight_squares = nullptr;  // one sum per tile
  double* update_squares = nullptr;  // one sum per tile
  float* step_size = nullptr;        // one number
  double relative = 0;               // min(lr, 1 / sqrt(step))
};
using AdafactorSet = TensorSet<AdafactorTensor>;

struct StepOptions {
  double clip_threshold, relative_floor;
};

// torch's lerp, in the form that is exact at the nearer end.
__device__ __forceinline__ float lerp(float from, float to, float rate) {
  const float way = __fsub_rn(to, from);
  if (rate < 0.5f) return __fadd_rn(from, __fmul_rn(rate, way));
  return __fsub_rn(to, __fmul_rn(way, __fsub_rn(1.0f, rate)));
}
__device__ __forceinline__ float reciprocal_root(float value) {
  return __fdiv_rn(1.0f, __fsqrt_rn(value));
}
__device__ __forceinline__ float at_most(float root) {
  return root > kAdafactorMostRoot ? kAdafactorMostRoot : root;  // keeps NaN
}

__device__ __forceinline__ std::int64_t element(const TensorPlace& place, const Tile& tile,
                                                std::int64_t row, std::int64_t col) {
  return place.begin + (tile.row + row) * place.cols + tile.col + col;
}

// Sums the row sums of a tile in fp64, in order. rows: shared memory, complete after a barrier.
__device__ __forceinline__ double sum_of_rows(const float* rows, std::int64_t count) {
  double sum = 0;
  for (std::int64_t row = 0; row < count; ++row) {
    sum = __dadd_rn(sum, static_cast<double>(rows[row]));
  }
  return sum;
}

// Sums of squares of the gradients, by row and by column, and of the parameter. A block handles a
// tile and reads its gradients twice: across for the rows, down for the columns.
__global__ void __launch_bounds__(kTileThreads)
    squares_kernel(const UpdateArrays arrays, const AdafactorSet set, float grad_scale) {
  __shared__ float row_sums[TensorTiles::kRows];
  std::int64_t index = blockIdx.x;
  const AdafactorTensor& tensor = set.tensors[tensor_of<&TensorPlace::tiles_end>(set, index)];
  const TensorPlace& place = tensor.place;
  const bool matrix = place.rows > 1;
  const Tile tile = TensorTiles({place.rows, place.cols})[index];
  for_tile_rows(tile.rows, [&](std::int64_t row, bool valid) {
    const std::int64_t at = element(place, tile, row, 0), cols = valid ? tile.cols : 0;
    const float weights = lane_sum(cols, [&](std::int64_t c) {
      const float w = master_at(arrays, at + c);
      return __fmul_rn(w, w);
    });
    if (valid && is_first_lane()) row_sums[row] = weights;
    const float gradients = lane_sum(matrix ? cols : 0, [&](std::int64_t c) {
      const float g = __fmul_rn(gradient_at(arrays, at + c), grad_scale);
      return __fmul_rn(g, g);
    });
    if (matrix && valid && is_first_lane()) {
      tensor.row_partials[tile.across * place.rows + tile.row + row] = gradients;
    }
  });
  __syncthreads();
  if (threadIdx.x == 0) tensor.weight_squares[tile.index] = sum_of_rows(row_sums, tile.rows);
  if (!matrix) return;
  for (std::int64_t col = threadIdx.x; col < tile.cols; col += kTileThreads) {
    float sum = 0;
    for (std::int64_t row = 0; row < tile.rows; ++row) {
      const float g = __fmul_rn(gradient_at(arrays, element(place, tile, row, col)), grad_scale);
      sum = __fadd_rn(sum, __fmul_rn(g, g));
    }
    tensor.col_partials[tile.down * place.cols + tile.col + col] = sum;
  }
}

// Updates the statistics of lines, one per thread, from the sums of squared gradients.
__global__ void __launch_bounds__(kTileThreads) lines_kernel(const AdafactorSet set, float rate) {
  std::int64_t block = blockIdx.x;
  const AdafactorTensor& tensor = set.tensors[tensor_of<&TensorPlace::line_blocks_end>(set, block)];
  const TensorPlace& place = tensor.place;
  const std::int64_t line = block * kLinesToABlock + threadIdx.x;
  if (line >= place.lines()) return;
  const TensorTiles tiles({place.rows, place.cols});
  const bool is_row = line < place.rows;
  const std::int64_t count = is_row ? tiles.across() : tiles.down();
  const std::int64_t stride = is_row ? place.rows : place.cols;
  const float* const partials =
      is_row ? tensor.row_partials + line : tensor.col_partials + (line - place.rows);
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    sum = __dadd_rn(sum, static_cast<double>(partials[i * stride]));
  }
  const auto elems = static_cast<double>(is_row ? place.cols : place.rows);
  const float mean = __double2float_rn(__ddiv_rn(sum, elems));
  const float now = lerp(tensor.statistics[line], mean, rate);
  tensor.statistics[line] = now;
  if (!is_row) tensor.col_roots[line - place.rows] = reciprocal_root(now);
}

// Computes the mean of the rows' statistics and each row's root. A block handles a tensor.
__global__ void __launch_bounds__(kTileThreads) row_roots_kernel(const AdafactorSet set) {
  __shared__ float staged[kOrderedNumbers];
  __shared__ float row_mean;
  const AdafactorTensor& tensor = set.tensors[blockIdx.x];
  const std::int64_t rows = tensor.place.rows;
  if (rows == 1) return;
  const double sum = ordered_sum(tensor.statistics, rows, staged);
  if (threadIdx.x == 0) {
    const float mean = __double2float_rn(__ddiv_rn(sum, static_cast<double>(rows)));
    row_mean = mean < kAdafactorEpsilon ? kAdafactorEpsilon : mean;
  }
  __syncthreads();
  for (std::int64_t row = threadIdx.x; row < rows; row += kTileThreads) {
    tensor.row_roots[row] = reciprocal_root(__fdiv_rn(tensor.statistics[row], row_mean));
  }
}

// Sums of squares of the update. It also updates the statistics of vectors.
__global__ void __launch_bounds__(kTileThreads)
    update_squares_kernel(const UpdateArrays arrays, const AdafactorSet set, float grad_scale,
                          float rate) {
  __shared__ float row_sums[TensorTiles::kRows];
  std::int64_t index = blockIdx.x;
  const AdafactorTensor& tensor = set.tensors[tensor_of<&TensorPlace::tiles_end>(set, index)];
  const TensorPlace& place = tensor.place;
  const bool matrix = place.rows > 1;
  const Tile tile = TensorTiles({place.rows, place.cols})[index];
  for_tile_rows(tile.rows, [&](std::int64_t row, bool valid) {
    const std::int64_t at = element(place, tile, row, 0);
    const float row_root = matrix && valid ? tensor.row_roots[tile.row + row] : 1.0f;
    const float sum = lane_sum(valid ? tile.cols : 0, [&](std::int64_t c) {
      const float g = __fmul_rn(gradient_at(arrays, at + c), grad_scale);
      float root;
      if (matrix) {
        root = __fmul_rn(row_root, tensor.col_roots[tile.col + c]);
      } else {
        float& statistic = tensor.statistics[tile.col + c];
        statistic = lerp(statistic, __fmul_rn(g, g), rate);
        root = reciprocal_root(statistic);
      }
      const float update = __fmul_rn(g, at_most(root));
      return __fmul_rn(update, update);
    });
    if (valid && is_first_lane()) row_sums[row] = sum;
  });
  __syncthreads();
  if (threadIdx.x == 0) tensor.update_squares[tile.index] = sum_of_rows(row_sums, tile.rows);
}

// Computes the step size of a tensor per block. Comparisons treat NaN as small, as torch does.
__global__ void __launch_bounds__(kTileThreads)
    step_size_kernel(const AdafactorSet set, const StepOptions options) {
  __shared__ double staged[kOrderedNumbers];
  const AdafactorTensor& tensor = set.tensors[blockIdx.x];
  const TensorPlace& place = tensor.place;
  const std::int64_t tiles = TensorTiles({place.rows, place.cols}).count();
  const double weight_squares = ordered_sum(tensor.weight_squares, tiles, staged);
  const double update_squares = ordered_sum(tensor.update_squares, tiles, staged);
  if (threadIdx.x != 0) return;
  const auto elems = static_cast<double>(place.rows * place.cols);
  const double size = __dsqrt_rn(__ddiv_rn(weight_squares, elems));
  const double update =
      __ddiv_rn(__dsqrt_rn(__ddiv_rn(update_squares, elems)), options.clip_threshold);
  const double alpha =
      __dmul_rn(size > options.relative_floor ? size : options.relative_floor, tensor.relative);
  *tensor.step_size = __double2float_rn(__ddiv_rn(alpha, update > 1.0 ? update : 1.0));
}

struct AdafactorStep {
  static constexpr int kMoments = 0;
  static constexpr bool kMaster = true;
  struct Own {
    const float* row_roots = nullptr;  // null: a vector
    const float* col_roots = nullptr;
    const float* statistics = nullptr;
    std::int64_t cols = 0;
    const float* step_size = nullptr;
    float lr_decay = 0;
  };
  float grad_scale;

  __device__ float operator()(const Own& own, std::int64_t at, float grad, float&, float&,
                              float w) const {
    const float g = __fmul_rn(grad, grad_scale);
    float root;
    if (own.row_roots != nullptr) {
      const RowAndColumn place = row_and_column(at, own.cols);
      root = __fmul_rn(own.row_roots[place.row], own.col_roots[place.col]);
    } else {
      root = reciprocal_root(own.statistics[at]);
    }
    w = __fsub_rn(w, __fmul_rn(own.lr_decay, w));
    return __fsub_rn(w, __fmul_rn(*own.step_size, __fmul_rn(g, at_most(root))));
  }
};

AdafactorTensor lay_out(const ParameterSegment& segment, WorkspaceParts& parts) {
  const TensorView& shape = segment.tensor;
  const TensorTiles tiles(shape);
  AdafactorTensor tensor;
  if (is_matrix(shape)) {
    tensor.row_partials = parts.take<float>(tiles.across() * shape.rows);
    tensor.col_partials = parts.take<float>(tiles.down() * shape.cols);
    tensor.row_roots = parts.take<float>(shape.rows);
    tensor.col_roots = parts.take<float>(shape.cols);
  }
  tensor.weight_squares = parts.take<double>(tiles.count());
  tensor.update_squares = parts.take<double>(tiles.count());
  tensor.step_size = parts.take<float>(1);
  return tensor;
}

struct Step {
  OptimizerOptions options;
  UpdateBuffers buffers;
  UpdateScalars scalars;
  UpdateArrays arrays;
  float rate;  // of forgetting statistics
};

void run_batch(StreamHandle stream, const Step& step, std::span<const ParameterSegment> batch,
               void* workspace) {
  WorkspaceParts parts(workspace);
  AdafactorSet set;
  const double most = 1.0 / std::sqrt(static_cast<double>(step.scalars.step));
  for (const ParameterSegment& segment : batch) {
    AdafactorTensor tensor = lay_out(segment, parts);
    tensor.statistics = static_cast<float*>(step.buffers.moment2) + segment.moment2_begin;
    const double lr = step.scalars.lr * segment.lr_scale;
    tensor.relative = std::min(lr, most);
    set.add(tensor, segment);
  }
  const float grad_scale = step.scalars.grad_scale;
  const dim3 block(kTileThreads), tiles = grid_of(set.tiles()), tensors = grid_of(set.count);
  launch(stream, tiles, block, 0, squares_kernel, step.arrays, set, grad_scale);
  if (set.line_blocks() > 0) {
    launch(stream, grid_of(set.line_blocks()), block, 0, lines_kernel, set, step.rate);
    launch(stream, tensors, block, 0, row_roots_kernel, set);
  }
  launch(stream, tiles, block, 0, update_squares_kernel, step.arrays, set, grad_scale, step.rate);
  launch(stream, tensors, block, 0, step_size_kernel, set,
         StepOptions{step.options.clip_threshold, step.options.relative_floor});
  const AdafactorTensor* tensor = set.tensors;
  run_update(stream, step.arrays, AdafactorStep{grad_scale}, batch,
             [&](const ParameterSegment& segment) {
               const AdafactorTensor& of = *tensor++;
               const float lr_decay = step.scalars.lr * segment.lr_scale * segment.weight_decay;
               return AdafactorStep::Own{of.row_roots,  of.col_roots, of.statistics,
                                         of.place.cols, of.step_size, lr_decay};
             });
}

}  // namespace

std::uint64_t adafactor_workspace_bytes(std::span<const ParameterSegment> segments) {
  return most_workspace_bytes<AdafactorTensor>(segments, lay_out);
}

void adafactor(StreamHandle stream, const OptimizerOptions& options, const UpdateBuffers& buffers,
               std::span<const ParameterSegment> segments, const UpdateScalars& scalars,
               void* workspace) {
  const auto steps = static_cast<double>(scalars.step);
  const Step step{options, buffers, scalars, update_arrays(options, buffers, scalars),
                  static_cast<float>(std::pow(steps, options.beta2_decay))};
  for_tensor_batches<AdafactorTensor>(segments, [&](std::span<const ParameterSegment> batch) {
    run_batch(stream, step, batch, workspace);
  });
}

}  // namespace sluice::kernels::cuda
