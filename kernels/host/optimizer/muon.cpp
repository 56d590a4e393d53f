// Muon (optimizer.hpp has its arithmetic). Hidden matrices one after another, each by all threads:
// a pass over gradient and momentum that leaves the update in the workspace, five Newton-Schulz
// iterations there (products by Gemm, hence the same bits for any thread count), a pass that
// applies it. Nearly all time is in the products: for [m, n], m <= n, 5 * (4 m^2 n + 2 m^3)
// operations. All other tensors: adamw.cpp.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <type_traits>

#include "base/error.hpp"
#include "kernels/host/gemm.hpp"
#include "kernels/host/gemm_cut.hpp"
#include "kernels/host/optimizer/rules.hpp"
#include "kernels/host/optimizer/tensor_tiles.hpp"
#include "kernels/host/parallel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/host/optimizer/muon.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/host/optimizer/chunk_rows.hpp"

#ifndef SLUICE_KERNELS_HOST_OPTIMIZER_MUON_TENSOR
#define SLUICE_KERNELS_HOST_OPTIMIZER_MUON_TENSOR
namespace sluice::host {

// Of the quintic that Newton-Schulz iterates (Jordan 2024), and the least norm divided by.
inline constexpr float kMuonA = 3.4445f, kMuonB = -4.7750f, kMuonC = 2.0315f;
inline constexpr double kMuonEpsilon = 1e-7;

// One hidden matrix, and its part of the workspace.
struct MuonTensor {
  const ParameterSegment* segment = nullptr;
  TensorTiles tiles;
  std::int64_t stride = 0;  // of x and other: elements from row to row
  float* x = nullptr;       // [rows, stride]: the update, orthogonalized
  float* other = nullptr;   // [rows, stride]: the next x
  std::int64_t small = 0;   // the smaller of rows and columns
  std::int64_t small_stride = 0;
  float* gram = nullptr;        // [small, small_stride]
  float* polynomial = nullptr;  // [small, small_stride]
  double* squares = nullptr;    // of each tile of the update
  float momentum = 0, one_minus_momentum = 0, grad_scale = 1;
  float norm = 1, step_size = 0, lr_decay = 0;
};

}  // namespace sluice::host
#endif

HWY_BEFORE_NAMESPACE();
namespace sluice::host::HWY_NAMESPACE {

// Elements of tile row `row`, from the first of the chunk.
HWY_INLINE std::int64_t element(const MuonTensor& tensor, const Tile& tile, std::int64_t row) {
  return tensor.segment->begin + (tile.row + row) * tensor.segment->tensor.cols + tile.col;
}

HWY_INLINE float* x_row(const MuonTensor& tensor, const Tile& tile, std::int64_t row) {
  return tensor.x + (tile.row + row) * tensor.stride + tile.col;
}

// The new momentum, and the update before it is orthogonalized.
void muon_momentum(const UpdateBuffers& buffers, MuonTensor& tensor, const Tile& tile) {
  alignas(64) float g[TensorTiles::kCols];
  double squares = 0;
  for (std::int64_t row = 0; row < tile.rows; ++row) {
    const std::int64_t at = element(tensor, tile, row);
    load_gradient(buffers, tensor.grad_scale, at, tile.cols, g);
    float* const moment = static_cast<float*>(buffers.moment1) + at;
    float* const update = x_row(tensor, tile, row);
    for_lanes(0, tile.cols, [&](auto d, std::int64_t c) HWY_ATTR {
      const auto kept = hn::Set(d, tensor.momentum);
      const auto added = hn::Mul(hn::Set(d, tensor.one_minus_momentum), hn::LoadU(d, g + c));
      const auto m = hn::Add(hn::Mul(kept, hn::LoadU(d, moment + c)), added);
      hn::StoreU(m, d, moment + c);
      hn::StoreU(hn::Add(hn::Mul(kept, m), added), d, update + c);
    });
    squares += squares_of(update, tile.cols);
  }
  tensor.squares[tile.index] = squares;
}

void muon_normalize(const MuonTensor& tensor, const Tile& tile) {
  for (std::int64_t row = 0; row < tile.rows; ++row) {
    float* const x = x_row(tensor, tile, row);
    for_lanes(0, tile.cols, [&](auto d, std::int64_t c) HWY_ATTR {
      hn::StoreU(hn::Div(hn::LoadU(d, x + c), hn::Set(d, tensor.norm)), d, x + c);
    });
  }
}

// Rows of polynomial = a I + (b gram + c gram^2), where polynomial holds gram^2; up to the
// diagonal.
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

void muon_apply(const UpdateBuffers& buffers, const MuonTensor& tensor, const Tile& tile) {
  alignas(64) float w[TensorTiles::kCols];
  for (std::int64_t row = 0; row < tile.rows; ++row) {
    const std::int64_t at = element(tensor, tile, row);
    const float* const x = x_row(tensor, tile, row);
    const float* const master = load_master(buffers, at, tile.cols, w);
    for_lanes(0, tile.cols, [&](auto d, std::int64_t c) HWY_ATTR {
      auto value = hn::LoadU(d, master + c);
      value = hn::Sub(value, hn::Mul(hn::Set(d, tensor.lr_decay), value));
      const auto step = hn::Mul(hn::Set(d, tensor.step_size), hn::LoadU(d, x + c));
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

HWY_EXPORT(muon_momentum);
HWY_EXPORT(muon_normalize);
HWY_EXPORT(muon_polynomial);
HWY_EXPORT(muon_apply);

bool is_tall(const MuonTensor& tensor) {
  return tensor.segment->tensor.rows > tensor.segment->tensor.cols;
}

// Products of one iteration: gram = x x^T (x^T x of a tall matrix), its square, and the polynomial
// times x (x times the polynomial).
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
  iteration.gram.lower_only = iteration.square.lower_only = true;
  iteration.next = product(rows, cols, small, tall ? x : polynomial, tall ? polynomial : x,
                           tensor.other, tensor.stride);
  return iteration;
}

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
  tensor.squares = parts.take<double>(tensor.tiles.count());
  return tensor;
}

std::uint64_t products_bytes(const Gemm& gemm, const MuonTensor& tensor) {
  const Iteration iteration = iteration_of(tensor);
  return std::max({gemm.workspace_bytes(iteration.gram), gemm.workspace_bytes(iteration.square),
                   gemm.workspace_bytes(iteration.next)});
}

// What lies above the diagonal, from what lies below it; in blocks that fit the nearest cache.
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

void update_hidden(const Parallel& parallel, const Gemm& gemm, const OptimizerOptions& options,
                   const UpdateBuffers& buffers, const ParameterSegment& segment,
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
  for_tiles([&](const Tile& tile) { HWY_DYNAMIC_DISPATCH(muon_momentum)(buffers, tensor, tile); });
  const double norm = std::sqrt(sum_in_order(tensor.squares, tensor.tiles.count()));
  tensor.norm = static_cast<float>(norm < kMuonEpsilon ? kMuonEpsilon : norm);
  for_tiles([&](const Tile& tile) { HWY_DYNAMIC_DISPATCH(muon_normalize)(tensor, tile); });
  orthogonalize(parallel, gemm, options.newton_schulz_steps, tensor, products);
  for_tiles([&](const Tile& tile) { HWY_DYNAMIC_DISPATCH(muon_apply)(buffers, tensor, tile); });
}

// AdamW of one tensor, whose second moment lies where kPerTensor states do.
void update_other(const Parallel& parallel, const OptimizerOptions& options,
                  const UpdateBuffers& buffers, const ParameterSegment& segment,
                  const UpdateScalars& scalars) {
  const auto from = [&](auto* all, DType type) {
    using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(all)>>,
                                    const std::byte, std::byte>;
    const auto bytes = bytes_of(type, static_cast<std::uint64_t>(segment.begin));
    return all != nullptr ? static_cast<Byte*>(all) + bytes : nullptr;
  };
  OptimizerOptions adamw_options = options;
  adamw_options.rule = OptimizerRule::kAdamW;
  UpdateBuffers own = buffers;
  own.grad = from(buffers.grad, buffers.grad_dtype);
  own.weight = from(buffers.weight, options.weight);
  own.master = from(buffers.master, state_layout(options, StateKind::kMaster).dtype);
  own.moment1 = from(buffers.moment1, options.moments);
  own.moment2 = static_cast<float*>(buffers.moment2) + segment.moment2_begin;
  own.elems = segment.end - segment.begin;
  ParameterSegment whole = segment;
  whole.begin = 0;
  whole.end = own.elems;
  adamw(parallel, adamw_options, own, {&whole, 1}, scalars);
}

}  // namespace

void muon(const Parallel& parallel, const Gemm& gemm, const OptimizerOptions& options,
          const UpdateBuffers& buffers, std::span<const ParameterSegment> segments,
          const UpdateScalars& scalars, void* workspace) {
  for (const ParameterSegment& segment : segments) {
    if (segment.tensor.hidden_matrix) {
      update_hidden(parallel, gemm, options, buffers, segment, scalars, workspace);
    } else {
      update_other(parallel, options, buffers, segment, scalars);
    }
  }
}

std::uint64_t muon_workspace_bytes(const Gemm& gemm, std::span<const ParameterSegment> segments) {
  std::uint64_t most = 0;
  for (const ParameterSegment& segment : segments) {
    if (!segment.tensor.hidden_matrix) continue;
    WorkspaceParts parts(nullptr);
    const MuonTensor tensor = lay_out(segment, parts);
    most = std::max(most, parts.bytes() + products_bytes(gemm, tensor));
  }
  return most;
}

}  // namespace sluice::host
#endif  // HWY_ONCE
