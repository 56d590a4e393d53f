// Muon (optimizer.hpp has its arithmetic). Hidden matrices run one after another: a pass over
// gradient and momentum leaves the update in the workspace; then its norm, Newton-Schulz iterations
// with the GEMM backend in fp32, and a pass that applies the result. Only the products depend on
// the device. All other tensors use AdamW with fp32 second moments.
#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/cuda/gemm.hpp"
#include "kernels/cuda/optimizer/adamw.cuh"
#include "kernels/cuda/optimizer/rules.hpp"
#include "kernels/cuda/optimizer/tensor_tiles.cuh"
#include "kernels/cuda/optimizer/update_loop.cuh"

namespace sluice::kernels::cuda {
namespace {

// Elements of an fp32 sum of squares, and the number of such sums per fp64 partial sum.
constexpr std::int64_t kStageElems = 256, kPieceStages = 64;
constexpr std::int64_t kPieceElems = kStageElems * kPieceStages;

// One hidden matrix, and its part of the workspace.
struct MuonTensor {
  std::int64_t rows = 0, cols = 0;
  std::int64_t small = 0;  // the smaller of rows and cols
  std::int64_t pieces = 0;
  float* x = nullptr;           // [rows, cols]: the update, being orthogonalized
  float* other = nullptr;       // [rows, cols]: the next x
  float* gram = nullptr;        // [small, small]
  float* polynomial = nullptr;  // [small, small]
  double* squares = nullptr;    // one sum per piece of the update
  float* norm = nullptr;        // one number
};

// Computes the new momentum, and the update before it is orthogonalized.
struct Momentum {
  static constexpr int kMoments = 1;
  static constexpr bool kMaster = false;
  struct Own {
    float* update = nullptr;
  };
  float momentum, one_minus_momentum, grad_scale;

  __device__ float operator()(const Own& own, std::int64_t at, float grad, float& m, float&,
                              float) const {
    const float added = __fmul_rn(one_minus_momentum, __fmul_rn(grad, grad_scale));
    m = __fadd_rn(__fmul_rn(momentum, m), added);
    own.update[at] = __fadd_rn(__fmul_rn(momentum, m), added);
    return 0;
  }
};

struct MuonStep {
  static constexpr int kMoments = 0;
  static constexpr bool kMaster = true;
  struct Own {
    const float* x = nullptr;
    float lr_decay = 0, step_size = 0;
  };
  __device__ float operator()(const Own& own, std::int64_t at, float, float&, float&,
                              float w) const {
    w = __fsub_rn(w, __fmul_rn(own.lr_decay, w));
    return __fsub_rn(w, __fmul_rn(own.step_size, own.x[at]));
  }
};

// AdamW for all other tensors.
struct OthersAdamW {
  static constexpr int kMoments = 1;
  static constexpr bool kMaster = true;
  struct Own {
    AdamWSteps steps;
    float* moment2 = nullptr;  // of the tensor
  };
  AdamConstants constants;
  float grad_scale;

  __device__ float operator()(const Own& own, std::int64_t at, float grad, float& m, float&,
                              float w) const {
    float v = own.moment2[at];
    w = adamw_element(constants, grad_scale, own.steps, grad, m, v, w);
    own.moment2[at] = v;
    return w;
  }
};

// A block handles a piece: half warps sum its stages in fp32, and one thread adds these in fp64.
__global__ void __launch_bounds__(kTileThreads)
    squares_kernel(const float* update, std::int64_t elems, double* squares) {
  __shared__ float stages[kPieceStages];
  const std::int64_t piece = blockIdx.x, first = piece * kPieceElems;
  const std::int64_t in_piece = elems - first < kPieceElems ? elems - first : kPieceElems;
  const std::int64_t count = (in_piece + kStageElems - 1) / kStageElems;
  for_tile_rows(count, [&](std::int64_t stage, bool valid) {
    const std::int64_t begin = stage * kStageElems, left = in_piece - begin;
    const std::int64_t some = !valid ? 0 : left < kStageElems ? left : kStageElems;
    const float sum = lane_sum(some, [&](std::int64_t i) {
      const float number = update[first + begin + i];
      return __fmul_rn(number, number);
    });
    if (valid && is_first_lane()) stages[stage] = sum;
  });
  __syncthreads();
  if (threadIdx.x != 0) return;
  double sum = 0;
  for (std::int64_t stage = 0; stage < count; ++stage) {
    sum = __dadd_rn(sum, static_cast<double>(stages[stage]));
  }
  squares[piece] = sum;
}

__global__ void __launch_bounds__(kTileThreads)
    norm_kernel(const double* squares, std::int64_t pieces, float* norm) {
  __shared__ double staged[kOrderedNumbers];
  const double root = __dsqrt_rn(ordered_sum(squares, pieces, staged));
  if (threadIdx.x == 0) *norm = __double2float_rn(root < kMuonEpsilon ? kMuonEpsilon : root);
}

__global__ void __launch_bounds__(kTileThreads)
    normalize_kernel(float* x, std::int64_t elems, const float* norm) {
  const float by = *norm;
  for (std::int64_t i = grid_thread(); i < elems; i += grid_threads()) x[i] = __fdiv_rn(x[i], by);
}

// polynomial = a I + (b gram + c gram^2). On entry polynomial holds gram^2.
__global__ void __launch_bounds__(kTileThreads)
    polynomial_kernel(const float* gram, float* polynomial, std::int64_t size) {
  for (std::int64_t i = grid_thread(); i < size * size; i += grid_threads()) {
    const float sum = __fadd_rn(__fmul_rn(kMuonB, gram[i]), __fmul_rn(kMuonC, polynomial[i]));
    polynomial[i] = i / size == i % size ? __fadd_rn(kMuonA, sum) : sum;
  }
}

MuonTensor lay_out(const ParameterSegment& segment, WorkspaceParts& parts) {
  MuonTensor tensor;
  tensor.rows = segment.tensor.rows;
  tensor.cols = segment.tensor.cols;
  tensor.small = std::min(tensor.rows, tensor.cols);
  tensor.pieces = (tensor.rows * tensor.cols + kPieceElems - 1) / kPieceElems;
  tensor.x = parts.take<float>(tensor.rows * tensor.cols);
  tensor.other = parts.take<float>(tensor.rows * tensor.cols);
  tensor.gram = parts.take<float>(tensor.small * tensor.small);
  tensor.polynomial = parts.take<float>(tensor.small * tensor.small);
  tensor.squares = parts.take<double>(tensor.pieces);
  tensor.norm = parts.take<float>(1);
  return tensor;
}

GemmShape product(std::int64_t m, std::int64_t n, std::int64_t k) {
  GemmShape shape;
  shape.m = m;
  shape.n = n;
  shape.k = k;
  shape.dtype = shape.output = DType::kF32;
  return shape;
}

// The products of one iteration: gram = x x^T (x^T x for a tall matrix), its square, and the
// polynomial times x (x times the polynomial).
struct Iteration {
  GemmShape gram, square, next;
  bool tall;
};
Iteration iteration_of(const MuonTensor& tensor) {
  Iteration iteration;
  iteration.tall = tensor.rows > tensor.cols;
  iteration.gram = product(tensor.small, tensor.small, std::max(tensor.rows, tensor.cols));
  iteration.gram.transpose_a = iteration.tall;
  iteration.gram.transpose_b = !iteration.tall;
  iteration.square = product(tensor.small, tensor.small, tensor.small);
  iteration.next = product(tensor.rows, tensor.cols, tensor.small);
  return iteration;
}

std::uint64_t products_bytes(const GemmBackend& backend, const MuonTensor& tensor) {
  const Iteration iteration = iteration_of(tensor);
  return std::max({gemm_workspace_bytes(backend, iteration.gram),
                   gemm_workspace_bytes(backend, iteration.square),
                   gemm_workspace_bytes(backend, iteration.next)});
}

dim3 strides_of(std::int64_t elems) {
  return dim3(grid_stride_blocks((elems + kTileThreads - 1) / kTileThreads, kTileThreads));
}

void orthogonalize(StreamHandle stream, GemmBackend& backend, int steps, MuonTensor& tensor,
                   void* workspace) {
  const Iteration iteration = iteration_of(tensor);
  for (int step = 0; step < steps; ++step) {
    gemm(stream, backend, iteration.gram, tensor.x, tensor.x, nullptr, tensor.gram, workspace);
    gemm(stream, backend, iteration.square, tensor.gram, tensor.gram, nullptr, tensor.polynomial,
         workspace);
    launch(stream, strides_of(tensor.small * tensor.small), dim3(kTileThreads), 0,
           polynomial_kernel, tensor.gram, tensor.polynomial, tensor.small);
    const float* const left = iteration.tall ? tensor.x : tensor.polynomial;
    const float* const right = iteration.tall ? tensor.polynomial : tensor.x;
    gemm(stream, backend, iteration.next, left, right, nullptr, tensor.other, workspace);
    std::swap(tensor.x, tensor.other);
  }
}

void update_hidden(StreamHandle stream, GemmBackend& backend, const OptimizerOptions& options,
                   const UpdateArrays& arrays, const ParameterSegment& segment,
                   const UpdateScalars& scalars, void* workspace) {
  WorkspaceParts parts(workspace);
  MuonTensor tensor = lay_out(segment, parts);
  void* const products =
      parts.take<std::byte>(static_cast<std::int64_t>(products_bytes(backend, tensor)));
  const std::int64_t elems = tensor.rows * tensor.cols;
  const dim3 block(kTileThreads);
  run_update(stream, arrays,
             Momentum{static_cast<float>(options.momentum),
                      static_cast<float>(1.0 - options.momentum), scalars.grad_scale},
             {&segment, 1}, [&](const ParameterSegment&) { return Momentum::Own{tensor.x}; });
  launch(stream, grid_of(tensor.pieces), block, 0, squares_kernel, tensor.x, elems, tensor.squares);
  launch(stream, dim3(1), block, 0, norm_kernel, tensor.squares, tensor.pieces, tensor.norm);
  launch(stream, strides_of(elems), block, 0, normalize_kernel, tensor.x, elems, tensor.norm);
  orthogonalize(stream, backend, options.newton_schulz_steps, tensor, products);
  const float lr = scalars.lr * segment.lr_scale;
  const auto large = static_cast<double>(std::max(tensor.rows, tensor.cols));
  const auto step_size = static_cast<float>(static_cast<double>(lr) * 0.2 * std::sqrt(large));
  run_update(stream, arrays, MuonStep{}, {&segment, 1}, [&](const ParameterSegment&) {
    return MuonStep::Own{tensor.x, lr * segment.weight_decay, step_size};
  });
}

}  // namespace

void muon(StreamHandle stream, GemmBackend& gemm, const OptimizerOptions& options,
          const UpdateBuffers& buffers, std::span<const ParameterSegment> segments,
          const UpdateScalars& scalars, void* workspace) {
  const UpdateArrays arrays = update_arrays(options, buffers, scalars);
  const AdamConstants constants = adam_constants(options, scalars.step);
  float* const moment2 = static_cast<float*>(buffers.moment2);
  std::vector<ParameterSegment> others;
  std::copy_if(segments.begin(), segments.end(), std::back_inserter(others),
               [](const ParameterSegment& segment) { return !segment.tensor.hidden_matrix; });
  run_update(stream, arrays, OthersAdamW{constants, scalars.grad_scale}, others,
             [&](const ParameterSegment& segment) {
               return OthersAdamW::Own{adamw_steps(constants, scalars, segment),
                                       moment2 + segment.moment2_begin};
             });
  for (const ParameterSegment& segment : segments) {
    if (!segment.tensor.hidden_matrix) continue;
    update_hidden(stream, gemm, options, arrays, segment, scalars, workspace);
  }
}

std::uint64_t muon_workspace_bytes(const GemmBackend& gemm,
                                   std::span<const ParameterSegment> segments) {
  std::uint64_t most = 0;
  for (const ParameterSegment& segment : segments) {
    if (!segment.tensor.hidden_matrix) continue;
    WorkspaceParts parts(nullptr);
    const MuonTensor tensor = lay_out(segment, parts);
    most = std::max(most, parts.bytes() + products_bytes(gemm, tensor));
  }
  return most;
}

}  // namespace sluice::kernels::cuda
