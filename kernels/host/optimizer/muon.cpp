// Muon (optimizer.hpp has its arithmetic). Hidden matrices run one after another, each on all
// threads:
//   1  a pass over gradient and momentum leaves the update in the workspace, with its squared norm
//   2  five Newton-Schulz iterations orthogonalize it: gram = x x^T, its square, a polynomial of
//      both, and the polynomial times x. Products are Gemm's, so bits do not depend on threads
//   3  a pass applies the result
// gram and its square are symmetric: only the lower half is computed, then mirrored. Nearly all
// time is in the products: 5 * (4 m^2 n + 2 m^3) operations for [m, n], m <= n. All other tensors
// use AdamW; their second moment is fp32 and lies in the kPerTensor state.
#include "kernels/host/optimizer/muon.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/error.hpp"
#include "kernels/host/gemm.hpp"
#include "kernels/host/gemm_cut.hpp"
#include "kernels/host/optimizer/rules.hpp"
#include "kernels/host/optimizer/tensor_tiles.hpp"
#include "kernels/host/optimizer/update_arrays.hpp"
#include "kernels/host/parallel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/host/optimizer/muon.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/host/optimizer/adamw_simd.hpp"
#include "kernels/host/optimizer/stage_simd.hpp"

#ifndef SLUICE_KERNELS_HOST_OPTIMIZER_MUON_TENSOR
#define SLUICE_KERNELS_HOST_OPTIMIZER_MUON_TENSOR
namespace sluice::kernels::host {

// One hidden matrix, and its part of the workspace.
struct MuonTensor {
  const ParameterSegment* segment = nullptr;
  TensorTiles tiles;
  std::int64_t stride = 0;  // of x and other: elements between rows
  float* x = nullptr;       // [rows, stride]: the update, being orthogonalized
  float* other = nullptr;   // [rows, stride]: the next x
  std::int64_t small = 0;   // the smaller of rows and columns
  std::int64_t small_stride = 0;
  float* gram = nullptr;        // [small, small_stride]
  float* polynomial = nullptr;  // [small, small_stride]
  double* squares = nullptr;    // one sum per piece of the update
  float momentum = 0, one_minus_momentum = 0, grad_scale = 1;
  float norm = 1, step_size = 0, lr_decay = 0;
};

}  // namespace sluice::kernels::host
#endif

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::host::HWY_NAMESPACE {

// Index in the chunk of the first element of tile row `row`.
HWY_INLINE std::int64_t element(const MuonTensor& tensor, const Tile& tile, std::int64_t row) {
  return tensor.segment->begin + (tile.row + row) * tensor.segment->tensor.cols + tile.col;
}

HWY_INLINE float* x_row(const MuonTensor& tensor, const Tile& tile, std::int64_t row) {
  return tensor.x + (tile.row + row) * tensor.stride + tile.col;
}

// Step 1 for elements [begin, end) of the tensor: stores the new momentum, and the update into
// `other` without a stride. Sums its squares in fp32 per stage and in fp64 over stages. It works in
// stages because 8-bit moments are blocks of elements.
void muon_momentum(const UpdateArrays& arrays, MuonTensor& tensor, std::int64_t begin,
                   std::int64_t end) {
  StageRoom room;
  double squares = 0;
  for (std::int64_t i = begin; i < end; i += kStageElems) {
    const std::int64_t count = std::min(kStageElems, end - i), at = tensor.segment->begin + i;
    const std::uint64_t key = tensor.segment->first_key + static_cast<std::uint64_t>(i);
    float* const update = tensor.other + i;
    float sum[1];
    with_grad(arrays, at, count, room.grad, [&](const auto& grad) HWY_ATTR {
      with_moments<1>(arrays, at, count, key, room, [&](const auto& moment, const auto&) HWY_ATTR {
        lane_sums(count, sum, [&](auto d, std::int64_t c, auto* terms) HWY_ATTR {
          const auto g = hn::Mul(grad.load(d, c), hn::Set(d, tensor.grad_scale));
          const auto added = hn::Mul(hn::Set(d, tensor.one_minus_momentum), g);
          const auto kept = hn::Set(d, tensor.momentum);
          const auto m = hn::Add(hn::Mul(kept, moment.load(d, c)), added);
          moment.store(d, m, c);
          const auto ahead = hn::Add(hn::Mul(kept, m), added);
          hn::StoreU(ahead, d, update + c);
          terms[0] = hn::Mul(ahead, ahead);
        });
      });
    });
    squares += static_cast<double>(sum[0]);
  }
  tensor.squares[begin / kUpdatePieceElems] = squares;
}

// Copies a tile of `other` to x, divided by the norm. `other` is free afterwards.
void muon_normalize(const MuonTensor& tensor, const Tile& tile) {
  const std::int64_t cols = tensor.segment->tensor.cols;
  for (std::int64_t row = 0; row < tile.rows; ++row) {
    const float* const from = tensor.other + (tile.row + row) * cols + tile.col;
    float* const x = x_row(tensor, tile, row);
    for_lanes(0, tile.cols, [&](auto d, std::int64_t c) HWY_ATTR {
      hn::StoreU(hn::Div(hn::LoadU(d, from + c), hn::Set(d, tensor.norm)), d, x + c);
    });
  }
}

// Computes rows of polynomial = a I + (b gram + c gram^2) up to the diagonal. On entry polynomial
// holds gram^2.
void muon_polynomial(const MuonTensor& tensor, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const float* const gram = tensor.gram + row * tensor.small_stride;
    float* const polynomial = tensor.polynomial + row * tensor.small_stride;
    for_lanes(0, row + 1, [&](auto d, std::int64_t c) HWY_ATTR {
      const auto linear = hn::Mul(hn::Set(d, kMuonB), hn::LoadU(d, gram + c));
      const auto square = hn::Mul(hn::Set(d, kMuonC), hn::LoadU(d, polynomial + c));
      hn::StoreU(hn::Add(linear, square), d, polynomial + c);
    });
    polynomial[row] = kMuonA + polynomial[row];
  }
}

// Step 3 for a tile: weight decay, then the step along x.
void muon_apply(const UpdateArrays& arrays, const MuonTensor& tensor, const Tile& tile) {
  const float lr_decay = tensor.lr_decay, step_size = tensor.step_size;
  for (std::int64_t row = 0; row < tile.rows; ++row) {
    const float* const x = x_row(tensor, tile, row);
    with_master(arrays, element(tensor, tile, row), tile.cols, [&](const auto& master) HWY_ATTR {
      for_lanes(0, tile.cols, [=](auto d, std::int64_t c) HWY_ATTR {
        auto w = master.load(d, c);
        w = hn::Sub(w, hn::Mul(hn::Set(d, lr_decay), w));
        w = hn::Sub(w, hn::Mul(hn::Set(d, step_size), hn::LoadU(d, x + c)));
        master.store(d, w, c);
      });
    });
  }
}

// AdamW for elements [begin, end) of any other tensor. moment2: the tensor's second moment, fp32.
void muon_adamw(const UpdateArrays& arrays, const AdamConstants& constants,
                const UpdateScalars& scalars, const ParameterSegment& segment, float* moment2,
                std::int64_t begin, std::int64_t end) {
  const float lr = scalars.lr * segment.lr_scale;
  const AdamW rule{constants, scalars.grad_scale, lr * segment.weight_decay,
                   lr / constants.bias_correction1};
  StageRoom room;
  for (std::int64_t i = begin; i < end; i += kStageElems) {
    const std::int64_t count = std::min(kStageElems, end - i), at = segment.begin + i;
    const std::uint64_t key = segment.first_key + static_cast<std::uint64_t>(i);
    float* const second = moment2 + i;
    with_grad(arrays, at, count, room.grad, [&](const auto& grad) HWY_ATTR {
      with_master(arrays, at, count, [&](const auto& master) HWY_ATTR {
        with_moments<1>(arrays, at, count, key, room,
                        [&](const auto& moment, const auto&) HWY_ATTR {
                          for_lanes(0, count, [=](auto d, std::int64_t c) HWY_ATTR {
                            auto m = moment.load(d, c), v = hn::LoadU(d, second + c);
                            master.store(d, rule(d, grad.load(d, c), m, v, master.load(d, c)), c);
                            moment.store(d, m, c);
                            hn::StoreU(v, d, second + c);
                          });
                        });
      });
    });
  }
}

}  // namespace sluice::kernels::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels::host {
namespace {

HWY_EXPORT(muon_momentum);
HWY_EXPORT(muon_normalize);
HWY_EXPORT(muon_polynomial);
HWY_EXPORT(muon_apply);
HWY_EXPORT(muon_adamw);

bool is_tall(const MuonTensor& tensor) {
  return tensor.segment->tensor.rows > tensor.segment->tensor.cols;
}

// The products of one iteration: gram = x x^T (x^T x for a tall matrix), its square, and the
// polynomial times x (x times the polynomial).
struct Iteration {
  Product gram, square, next;
};

Iteration iteration_of(const MuonTensor& tensor) {
  const std::int64_t rows = tensor.segment->tensor.rows, cols = tensor.segment->tensor.cols;
  const std::int64_t small = tensor.small, large = std::max(rows, cols);
  const bool tall = is_tall(tensor);
  const Operand x{tensor.x, DType::kF32, false, tensor.stride};
  const Operand transposed{tensor.x, DType::kF32, true, tensor.stride};
  const Operand gram{tensor.gram, DType::kF32, false, tensor.small_stride};
  const Operand polynomial{tensor.polynomial, DType::kF32, false, tensor.small_stride};
  const auto product = [](std::int64_t m, std::int64_t n, std::int64_t k, const Operand& a,
                          const Operand& b, float* c, std::int64_t stride) {
    Product p;
    p.m = m;
    p.n = n;
    p.k = k;
    p.a = a;
    p.b = b;
    p.c = c;
    p.c_stride = stride;
    return p;
  };
  Iteration iteration;
  iteration.gram = product(small, small, large, tall ? transposed : x, tall ? x : transposed,
                           tensor.gram, tensor.small_stride);
  iteration.square =
      product(small, small, small, gram, gram, tensor.polynomial, tensor.small_stride);
  // mirror() fills in the upper halves.
  iteration.gram.lower_only = iteration.square.lower_only = true;
  iteration.next = product(rows, cols, small, tall ? x : polynomial, tall ? polynomial : x,
                           tensor.other, tensor.stride);
  return iteration;
}

std::int64_t pieces_of(const ParameterSegment& segment) {
  return Cut::quotient_up(segment.end - segment.begin, kUpdatePieceElems);
}

// Assigns workspace to a matrix. Strides avoid multiples of 2 KiB (gemm_cut.hpp).
MuonTensor lay_out(const ParameterSegment& segment, WorkspaceParts& parts) {
  const TensorView& shape = segment.tensor;
  MuonTensor tensor;
  tensor.segment = &segment;
  tensor.tiles = TensorTiles(shape);
  tensor.stride = unaliased_stride(shape.cols);
  tensor.x = parts.take<float>(shape.rows * tensor.stride);
  tensor.other = parts.take<float>(shape.rows * tensor.stride);
  tensor.small = std::min(shape.rows, shape.cols);
  tensor.small_stride = unaliased_stride(tensor.small);
  tensor.gram = parts.take<float>(tensor.small * tensor.small_stride);
  tensor.polynomial = parts.take<float>(tensor.small * tensor.small_stride);
  tensor.squares = parts.take<double>(pieces_of(segment));
  return tensor;
}

// Workspace of the largest product of an iteration.
std::uint64_t products_bytes(const Gemm& gemm, const MuonTensor& tensor) {
  const Iteration iteration = iteration_of(tensor);
  return std::max({gemm.workspace_bytes(iteration.gram), gemm.workspace_bytes(iteration.square),
                   gemm.workspace_bytes(iteration.next)});
}

// Copies the half below the diagonal to the half above it, in blocks that fit the nearest cache.
void mirror(const Parallel& parallel, float* matrix, std::int64_t size, std::int64_t stride) {
  constexpr std::int64_t kBlock = 64;
  parallel.for_blocks(size, kBlock, [&](std::int64_t top, std::int64_t bottom) {
    for (std::int64_t left = top; left < size; left += kBlock) {
      const std::int64_t right = std::min(size, left + kBlock);
      for (std::int64_t row = top; row < bottom; ++row) {
        for (std::int64_t col = std::max(left, row + 1); col < right; ++col) {
          matrix[row * stride + col] = matrix[col * stride + row];
        }
      }
    }
  });
}

// Step 2. Each iteration writes the next x to `other` and swaps the two.
void orthogonalize(const Parallel& parallel, const Gemm& gemm, int steps, MuonTensor& tensor,
                   void* workspace) {
  for (int step = 0; step < steps; ++step) {
    const Iteration iteration = iteration_of(tensor);
    gemm.run(iteration.gram, workspace);
    mirror(parallel, tensor.gram, tensor.small, tensor.small_stride);
    gemm.run(iteration.square, workspace);
    parallel.for_blocks(tensor.small, TensorTiles::kRows,
                        [&](std::int64_t begin, std::int64_t end) {
                          HWY_DYNAMIC_DISPATCH(muon_polynomial)(tensor, begin, end);
                        });
    mirror(parallel, tensor.polynomial, tensor.small, tensor.small_stride);
    gemm.run(iteration.next, workspace);
    std::swap(tensor.x, tensor.other);
  }
}

// Updates one hidden matrix: steps 1 to 3.
void update_hidden(const Parallel& parallel, const Gemm& gemm, const OptimizerOptions& options,
                   const UpdateArrays& arrays, const ParameterSegment& segment,
                   const UpdateScalars& scalars, void* workspace) {
  WorkspaceParts parts(workspace);
  MuonTensor tensor = lay_out(segment, parts);
  void* const products =
      parts.take<std::byte>(static_cast<std::int64_t>(products_bytes(gemm, tensor)));
  const float lr = scalars.lr * segment.lr_scale;
  const auto large = static_cast<double>(std::max(segment.tensor.rows, segment.tensor.cols));
  tensor.momentum = static_cast<float>(options.momentum);
  tensor.one_minus_momentum = static_cast<float>(1.0 - options.momentum);
  tensor.grad_scale = scalars.grad_scale;
  tensor.lr_decay = lr * segment.weight_decay;
  tensor.step_size = static_cast<float>(static_cast<double>(lr) * 0.2 * std::sqrt(large));
  const auto for_tiles = [&](const auto& body) {
    parallel.for_each(tensor.tiles.count(), [&](std::int64_t index) { body(tensor.tiles[index]); });
  };
  parallel.for_blocks(segment.end - segment.begin, kUpdatePieceElems,
                      [&](std::int64_t begin, std::int64_t end) {
                        HWY_DYNAMIC_DISPATCH(muon_momentum)(arrays, tensor, begin, end);
                      });
  const double norm = std::sqrt(sum_in_order(tensor.squares, pieces_of(segment)));
  // The norm is fp64 over pieces in order, so it does not depend on threads.
  tensor.norm = static_cast<float>(norm < kMuonEpsilon ? kMuonEpsilon : norm);
  for_tiles([&](const Tile& tile) { HWY_DYNAMIC_DISPATCH(muon_normalize)(tensor, tile); });
  orthogonalize(parallel, gemm, options.newton_schulz_steps, tensor, products);
  for_tiles([&](const Tile& tile) { HWY_DYNAMIC_DISPATCH(muon_apply)(arrays, tensor, tile); });
}

}  // namespace

void Muon::update(const Parallel& parallel, const OptimizerOptions& options,
                  const UpdateBuffers& buffers, std::span<const ParameterSegment> segments,
                  const UpdateScalars& scalars, void* workspace) const {
  const UpdateArrays arrays = update_arrays(options, buffers, scalars);
  const AdamConstants constants = adam_constants(options, scalars.step);
  // The other tensors come first, all together, because most are small.
  for_each_block(
      parallel, segments.size(),
      [&](std::size_t i) {
        const ParameterSegment& segment = segments[i];
        return segment.tensor.hidden_matrix ? 0 : segment.end - segment.begin;
      },
      kUpdatePieceElems,
      [&](std::size_t i, std::int64_t begin, std::int64_t end) {
        float* const moment2 = static_cast<float*>(buffers.moment2) + segments[i].moment2_begin;
        HWY_DYNAMIC_DISPATCH(muon_adamw)
        (arrays, constants, scalars, segments[i], moment2, begin, end);
      });
  for (const ParameterSegment& segment : segments) {
    if (!segment.tensor.hidden_matrix) continue;
    update_hidden(parallel, gemm_, options, arrays, segment, scalars, workspace);
  }
}

std::uint64_t Muon::workspace_bytes(std::span<const ParameterSegment> segments) const {
  std::uint64_t most = 0;
  for (const ParameterSegment& segment : segments) {
    if (!segment.tensor.hidden_matrix) continue;
    WorkspaceParts parts(nullptr);
    const MuonTensor tensor = lay_out(segment, parts);
    most = std::max(most, parts.bytes() + products_bytes(gemm_, tensor));
  }
  return most;
}

}  // namespace sluice::kernels::host
#endif  // HWY_ONCE
