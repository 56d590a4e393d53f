// Plain matrix products (gemm_plain.hpp has the outline).
//
// A block computes one tile of C over all of k, so k is never split and no sum has two owners.
//   16 bits: eight warps (2 x 4), each 64 x 32 of the 128 x 128 tile. Panels of depth 32 are staged
//            in shared memory by asynchronous copies, one computed while the next is copied. Each
//            operand may be stored along k or across it; ldmatrix transposes on the way in.
//   fp32:    16 x 16 threads with 4 x 4 elements each, from staged panels of depth 16.
// Rows and columns beyond the matrix are zeros in shared memory and are not stored. The bias is
// added to the fp32 sum, and the result is rounded once.
#include "base/error.hpp"
#include "kernels/cuda/gemm_plain.hpp"
#include "kernels/cuda/mma_tile.cuh"

namespace sluice::kernels::cuda {
namespace {

struct Arguments {
  std::int64_t m, n, k;
  GemmStrides strides;
  const void *a, *b, *bias;
  void* c;
  bool transpose_a, transpose_b;
  bool wide;  // C is fp32
};

// The tile of C of a block. Tiles are numbered down the rows, so that neighbours share B.
struct Place {
  std::int64_t row, col;
};

__device__ Place place_of(const Arguments& arguments, int tile_rows, int tile_cols) {
  const std::int64_t rows = (arguments.m + tile_rows - 1) / tile_rows;
  const std::int64_t index = blockIdx.x;
  return {index % rows * tile_rows, index / rows * tile_cols};
}

// Stores C = sum (+ bias), rounded once.
template <class T>
__device__ __forceinline__ void store(const Arguments& arguments, std::int64_t row,
                                      std::int64_t col, float sum) {
  if (row >= arguments.m || col >= arguments.n) return;
  if (arguments.bias != nullptr) sum += load_float(static_cast<const T*>(arguments.bias)[col]);
  const std::int64_t at = row * arguments.strides.c + col;
  if (arguments.wide) {
    static_cast<float*>(arguments.c)[at] = sum;
  } else {
    static_cast<T*>(arguments.c)[at] = from_float<T>(sum);
  }
}

// --- 16-bit operands, tensor cores

constexpr int kTile = 128;     // rows and columns of C per block
constexpr int kDepth = 32;     // of k, staged at a time
constexpr int kStages = 2;     // one is computed while the next is copied
constexpr int kThreads = 256;  // eight warps: two along m, four along n
constexpr int kWarpRows = 64, kWarpCols = 32;
constexpr int kRowTiles = kWarpRows / 16, kColPairs = kWarpCols / 16;

// One operand: `outer` rows of A or columns of B, with all of k. Stored [outer, k] or [k, outer].
template <class T, bool kAlongK>
struct Panel {
  static constexpr int kRows = kAlongK ? kTile : kDepth, kCols = kAlongK ? kDepth : kTile;
  static constexpr int kElems = tile_elems(kRows, kCols);

  const T* data;
  std::int64_t outer, k, stride;  // size of the whole operand

  __device__ __forceinline__ void load(T* tile, std::int64_t first, std::int64_t step) const {
    const std::int64_t row = kAlongK ? first : step, col = kAlongK ? step : first;
    const std::int64_t rows = (kAlongK ? outer : k) - row, cols = (kAlongK ? k : outer) - col;
    const T* const from = data + row * stride + col;
    if (stride % kPieceElems == 0 && reinterpret_cast<std::uintptr_t>(data) % 16 == 0) {
      load_tile<kRows, kCols, kThreads>(tile, from, stride, rows, cols);
      return;
    }
    // Unaligned operands are copied element by element.
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kCols; i += kThreads) {
      const int r = i / kCols, c = i % kCols;
      tile[r * tile_stride(kCols) + c] = r < rows && c < cols ? from[r * stride + c] : T{};
    }
  }
};

// Adds the product of two staged panels to a warp's accumulators.
template <class T, bool kAAlongK, bool kBAlongK>
__device__ __forceinline__ void multiply_stage(const T* a_tile, const T* b_tile,
                                               float (&sums)[kRowTiles][2 * kColPairs][4]) {
  const int first_row = warp_index() / 4 * kWarpRows, first_col = warp_index() % 4 * kWarpCols;
#pragma unroll
  for (int depth = 0; depth < kDepth; depth += 16) {
    std::uint32_t b[kColPairs][4];
#pragma unroll
    for (int pair = 0; pair < kColPairs; ++pair) {
      const int col = first_col + pair * 16;
      if constexpr (kBAlongK) {
        load_b_transposed<kDepth>(b[pair], b_tile, depth, col);
      } else {
        load_b<kTile>(b[pair], b_tile, depth, col);
      }
    }
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      std::uint32_t a[4];
      const int row = first_row + tile * 16;
      if constexpr (kAAlongK) {
        load_a<kDepth>(a, a_tile, row, depth);
      } else {
        load_a_transposed<kTile>(a, a_tile, row, depth);
      }
#pragma unroll
      for (int pair = 0; pair < kColPairs; ++pair) {
        multiply_pair<T>(sums[tile][2 * pair], sums[tile][2 * pair + 1], a, b[pair]);
      }
    }
  }
}

// Stores a warp's accumulators; the lane's rows and columns are those of mma_tile.cuh.
template <class T>
__device__ __forceinline__ void store_sums(const Arguments& arguments, const Place& place,
                                           const float (&sums)[kRowTiles][2 * kColPairs][4]) {
  const std::int64_t row = place.row + warp_index() / 4 * kWarpRows + lane_index() / 4;
  const std::int64_t col = place.col + warp_index() % 4 * kWarpCols + lane_index() % 4 * 2;
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int step = 0; step < 2 * kColPairs; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        store<T>(arguments, row + tile * 16 + i / 2 * 8, col + step * 8 + i % 2,
                 sums[tile][step][i]);
      }
    }
  }
}

template <class T, bool kTransposeA, bool kTransposeB>
__global__ void __launch_bounds__(kThreads) tensor_core_gemm(Arguments arguments) {
  using PanelA = Panel<T, !kTransposeA>;
  using PanelB = Panel<T, kTransposeB>;
  T* const a_tiles = dynamic_shared<T>();
  T* const b_tiles = a_tiles + kStages * PanelA::kElems;
  const PanelA a{static_cast<const T*>(arguments.a), arguments.m, arguments.k, arguments.strides.a};
  const PanelB b{static_cast<const T*>(arguments.b), arguments.n, arguments.k, arguments.strides.b};
  const Place place = place_of(arguments, kTile, kTile);
  // Accumulators stay in registers over all of k.
  float sums[kRowTiles][2 * kColPairs][4] = {};

  // Double buffering: while one stage is multiplied, the next one is copied.
  const std::int64_t steps = (arguments.k + kDepth - 1) / kDepth;
  a.load(a_tiles, place.row, 0);
  b.load(b_tiles, place.col, 0);
  copy_async_commit();
  for (std::int64_t step = 0; step < steps; ++step) {
    const int stage = static_cast<int>(step % kStages), next = 1 - stage;
    if (step + 1 < steps) {
      a.load(a_tiles + next * PanelA::kElems, place.row, (step + 1) * kDepth);
      b.load(b_tiles + next * PanelB::kElems, place.col, (step + 1) * kDepth);
    }
    copy_async_commit();  // may be empty, so that the wait below counts correctly
    copy_async_wait<1>();
    __syncthreads();
    multiply_stage<T, !kTransposeA, kTransposeB>(a_tiles + stage * PanelA::kElems,
                                                 b_tiles + stage * PanelB::kElems, sums);
    __syncthreads();  // all warps are done before the stage is refilled
  }
  store_sums<T>(arguments, place, sums);
}

// --- fp32 operands

constexpr int kWideTile = 64, kWideDepth = 16;
constexpr int kWideStride = kWideTile + 4;  // rows stay 16-byte aligned and use different banks
constexpr int kPerThread = 4;               // 16 x 16 threads, 4 x 4 elements of C each

// to[p][i] = operand(first + i, step + p), zero outside. Stored [outer, k] (along_k) or [k, outer];
// in both cases neighbouring threads read neighbouring addresses.
__device__ __forceinline__ void load_wide(float (&to)[kWideDepth][kWideStride], const float* data,
                                          bool along_k, std::int64_t outer, std::int64_t k,
                                          std::int64_t stride, std::int64_t first,
                                          std::int64_t step) {
  for (int at = static_cast<int>(threadIdx.x); at < kWideTile * kWideDepth; at += kThreads) {
    const int i = along_k ? at / kWideDepth : at % kWideTile;
    const int p = along_k ? at % kWideDepth : at / kWideTile;
    const std::int64_t row = first + i, col = step + p;
    const bool inside = row < outer && col < k;
    to[p][i] = inside ? data[along_k ? row * stride + col : col * stride + row] : 0.0f;
  }
}

__global__ void __launch_bounds__(kThreads) wide_gemm(Arguments arguments) {
  __shared__ float a[kWideDepth][kWideStride];
  __shared__ float b[kWideDepth][kWideStride];
  const Place place = place_of(arguments, kWideTile, kWideTile);
  const int row = static_cast<int>(threadIdx.x) / 16 * kPerThread;
  const int col = static_cast<int>(threadIdx.x) % 16 * kPerThread;
  float sums[kPerThread][kPerThread] = {};
  for (std::int64_t step = 0; step < arguments.k; step += kWideDepth) {
    // One stage of both panels; the second barrier below frees them for the next one.
    load_wide(a, static_cast<const float*>(arguments.a), !arguments.transpose_a, arguments.m,
              arguments.k, arguments.strides.a, place.row, step);
    load_wide(b, static_cast<const float*>(arguments.b), arguments.transpose_b, arguments.n,
              arguments.k, arguments.strides.b, place.col, step);
    __syncthreads();
#pragma unroll
    for (int p = 0; p < kWideDepth; ++p) {
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
#pragma unroll
        for (int j = 0; j < kPerThread; ++j) {
          sums[i][j] = __fmaf_rn(a[p][row + i], b[p][col + j], sums[i][j]);
        }
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < kPerThread; ++i) {
    for (int j = 0; j < kPerThread; ++j) {
      store<float>(arguments, place.row + row + i, place.col + col + j, sums[i][j]);
    }
  }
}

// --- host side

dim3 grid_of(const Arguments& arguments, std::int64_t tile) {
  const std::int64_t rows = (arguments.m + tile - 1) / tile, cols = (arguments.n + tile - 1) / tile;
  SLUICE_CHECK(rows * cols <= INT32_MAX);
  return dim3(static_cast<unsigned>(rows * cols));
}

template <class T, bool kTransposeA, bool kTransposeB>
void launch_tensor_core(StreamHandle stream, const Arguments& arguments) {
  constexpr std::size_t kShared =
      sizeof(T) * kStages * (Panel<T, !kTransposeA>::kElems + Panel<T, kTransposeB>::kElems);
  launch(stream, grid_of(arguments, kTile), dim3(kThreads), kShared,
         tensor_core_gemm<T, kTransposeA, kTransposeB>, arguments);
}

template <class T>
void launch_narrow(StreamHandle stream, const Arguments& arguments) {
  if (arguments.transpose_a) {
    return arguments.transpose_b ? launch_tensor_core<T, true, true>(stream, arguments)
                                 : launch_tensor_core<T, true, false>(stream, arguments);
  }
  return arguments.transpose_b ? launch_tensor_core<T, false, true>(stream, arguments)
                               : launch_tensor_core<T, false, false>(stream, arguments);
}

class PlainGemm final : public GemmBackend {
 public:
  const char* name() const override { return "plain"; }
  std::uint64_t workspace_bytes() const override { return 0; }

  bool multiply(StreamHandle stream, const GemmShape& shape, const GemmStrides& strides,
                const void* a, const void* b, const GemmEpilogue& epilogue, void* c,
                void*) override {
    // Activations are left to a kernel of their own.
    if (epilogue.activation != GemmActivation::kNone) return false;
    const Arguments arguments{.m = shape.m,
                              .n = shape.n,
                              .k = shape.k,
                              .strides = strides,
                              .a = a,
                              .b = b,
                              .bias = epilogue.bias,
                              .c = c,
                              .transpose_a = shape.transpose_a,
                              .transpose_b = shape.transpose_b,
                              .wide = shape.output == DType::kF32};
    switch (shape.dtype) {
      case DType::kBF16:
        launch_narrow<bf16>(stream, arguments);
        break;
      case DType::kF16:
        launch_narrow<f16>(stream, arguments);
        break;
      default:
        launch(stream, grid_of(arguments, kWideTile), dim3(kThreads), 0, wide_gemm, arguments);
    }
    return true;
  }
};

}  // namespace

std::unique_ptr<GemmBackend> make_plain_gemm() {
  return std::make_unique<PlainGemm>();
}

}  // namespace sluice::kernels::cuda
