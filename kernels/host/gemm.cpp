// Matrix products from single-threaded library calls (gemm.hpp has the outline).
//
//          cols of C                  for each column of super-blocks:
//        +-----------+-----------+      fill the panel of B (once)
//   rows |super-block|           |      for each super-block of the column:
//        | +--+--+   |           |        fill the panel of A (once, if one panel holds all rows)
//        | |  |  |   |           |        compute the tiles, each by one thread over all of k
//        | +--+--+   |           |
//        +-----------+-----------+
//
// Invariants: the cut depends on the shape alone and k is never split, so every element of C is one
// sum in one order, whatever the number of threads. Panels are about 4 MiB (64 rows if k > 16,384),
// so that they stay in the last-level cache with their tiles. Strides are padded away from
// multiples of 2 KiB.
#include "kernels/host/gemm.hpp"

#include <algorithm>
#include <cstddef>

#include "base/error.hpp"
#include "base/units.hpp"
#include "kernels/host/gemm_cut.hpp"
#include "kernels/host/onednn.hpp"
#include "kernels/host/parallel.hpp"
#include "kernels/host/rows.hpp"

namespace sluice::kernels::host {
namespace {

// 16-bit operands are widened to fp32 into panels of about kPanelBytes, so that a panel and its
// tiles stay in the last-level cache. Widening costs one load per element and super-block: a few
// percent of the product's time if a panel has at least kLeastPanel rows.
constexpr std::int64_t kPanelBytes = 4 * kMiB;
constexpr std::int64_t kLeastPanel = 64;

Cut panels(std::int64_t extent, std::int64_t k, bool copied) {
  if (!copied) return Cut(extent, extent, 1);
  const std::int64_t rows = kPanelBytes / (k * std::int64_t{sizeof(float)});
  return Cut(extent, std::max(kLeastPanel, rows / kLeastPanel * kLeastPanel), kLeastPanel);
}

bool is_bf16(const Operand& operand) {
  return operand.dtype == DType::kBF16;
}

// Whether an fp32 product needs a widened copy of the operand.
bool is_narrow(const Operand& operand) {
  return operand.dtype != DType::kF32;
}

// Whether rows of op(A), or columns of op(B), are stored as columns.
bool a_across(const Product& p) {
  return p.a.transposed;
}
bool b_across(const Product& p) {
  return !p.b.transposed;
}

// 16-bit operands are widened into panels. fp32 ones are copied only if reading in place is slow.
bool takes_panel(const Operand& operand, bool across) {
  return is_narrow(operand) || (across && aliases(operand.stride));
}

// Floats of a panel of `length` rows (or columns) with all of k.
std::int64_t panel_floats(std::int64_t length, std::int64_t k, bool across) {
  return across ? k * unaliased_stride(length) : length * unaliased_stride(k);
}

std::int64_t padded_bytes(std::int64_t floats) {
  return static_cast<std::int64_t>(
      round_up(static_cast<std::uint64_t>(floats) * sizeof(float), kTensorAlignmentBytes));
}

// The super-blocks of the output, and the workspace of one: panel of A, panel of B, then an fp32
// tile for each worker.
struct PanelPlan {
  Cut rows, cols;
  std::int64_t a_bytes = 0, b_bytes = 0, tile_bytes = 0, most_tiles = 0;

  explicit PanelPlan(const Product& p)
      : rows(panels(p.m, p.k, takes_panel(p.a, a_across(p)))),
        cols(panels(p.n, p.k, takes_panel(p.b, b_across(p)))) {
    if (takes_panel(p.a, a_across(p))) {
      a_bytes = padded_bytes(panel_floats(rows.size, p.k, a_across(p)));
    }
    if (takes_panel(p.b, b_across(p))) {
      b_bytes = padded_bytes(panel_floats(cols.size, p.k, b_across(p)));
    }
    if (p.c_dtype != DType::kF32) {
      tile_bytes = padded_bytes(std::min(p.m, Tiles::kMostRows) * std::min(p.n, Tiles::kMostCols));
    }
    most_tiles = Tiles::most(rows.size, cols.size);
  }
};

const void* at(const void* base, std::int64_t index, DType dtype) {
  return static_cast<const std::byte*>(base) +
         index * static_cast<std::int64_t>(dtype_bytes(dtype));
}

void* at(void* base, std::int64_t index, DType dtype) {
  return static_cast<std::byte*>(base) + index * static_cast<std::int64_t>(dtype_bytes(dtype));
}

// The part of an operand that one super-block needs: `length` rows of op(A), or columns of op(B),
// from `begin` on, with all of k.
class Panel {
 public:
  Panel(const Operand& operand, bool across, std::int64_t begin, std::int64_t length,
        std::int64_t k, float* copy)
      : source_(at(operand.data, across ? begin : begin * operand.stride, operand.dtype)),
        dtype_(operand.dtype),
        source_stride_(operand.stride),
        across_(across),
        stored_cols_(across ? length : k),
        copy_(takes_panel(operand, across) ? copy : nullptr),
        copy_stride_(unaliased_stride(stored_cols_)),
        blocks_(across ? k : length, std::max<std::int64_t>(1, kBlockElems / stored_cols_), 1) {}

  // Blocks of the copy; any thread may fill any block. 0 if the operand is read in place.
  std::int64_t blocks() const { return copy_ != nullptr ? blocks_.parts : 0; }
  void fill(std::int64_t block) const {
    const std::int64_t begin = blocks_.begin(block), rows = blocks_.length(block);
    const void* const from = at(source_, begin * source_stride_, dtype_);
    float* const to = copy_ + begin * copy_stride_;
    widen_block(from, dtype_, source_stride_, rows, stored_cols_, to, copy_stride_);
  }

  std::int64_t stride() const { return copy_ != nullptr ? copy_stride_ : source_stride_; }
  const float* from(std::int64_t index) const {
    const float* const base = copy_ != nullptr ? copy_ : static_cast<const float*>(source_);
    return base + (across_ ? index : index * stride());
  }

 private:
  static constexpr std::int64_t kBlockElems = 32 << 10;  // 192 KiB read and written: fits an L2

  const void* source_;
  DType dtype_;
  std::int64_t source_stride_;
  bool across_;
  std::int64_t stored_cols_;
  float* copy_;
  std::int64_t copy_stride_;
  Cut blocks_;
};

// Rows [row, row + rows) and columns [col, col + cols) of C. They start at panel_row and panel_col
// of the panels.
struct Tile {
  std::int64_t row, col, rows, cols, panel_row, panel_col;
};

void compute_tile(const Product& p, const Tile& tile, const Panel& a, const Panel& b,
                  float* scratch) {
  void* const c = at(p.c, tile.row * p.c_stride + tile.col, p.c_dtype);
  const bool direct = p.c_dtype == DType::kF32;
  float* const sums = direct ? static_cast<float*>(c) : scratch;
  const std::int64_t stride = direct ? p.c_stride : tile.cols;
  const SgemmShape shape{
      tile.rows, tile.cols, p.k, p.a.transposed, p.b.transposed, 1.0f, p.accumulate ? 1.0f : 0.0f};
  sgemm(shape, a.from(tile.panel_row), a.stride(), b.from(tile.panel_col), b.stride(), sums,
        stride);
  // fp32 output without bias is complete after the product; anything else is rounded once here.
  if (direct && p.bias == nullptr) return;
  store_block({.rows = tile.rows,
               .cols = tile.cols,
               .from = sums,
               .from_stride = stride,
               .to = c,
               .to_dtype = p.c_dtype,
               .to_stride = p.c_stride,
               .bias = p.bias != nullptr ? at(p.bias, tile.col, p.bias_dtype) : nullptr,
               .bias_dtype = p.bias_dtype});
}

MatmulKey key_of(const Product& p, std::int64_t rows, std::int64_t cols) {
  MatmulKey key;
  key.m = rows;
  key.n = cols;
  key.k = p.k;
  key.a_stride = p.a.stride;
  key.b_stride = p.b.stride;
  key.c_stride = p.c_stride;
  key.transpose_a = p.a.transposed;
  key.transpose_b = p.b.transposed;
  key.bias = p.bias != nullptr;
  key.accumulate = p.accumulate;
  key.dtype = p.a.dtype;
  key.bias_dtype = p.bias_dtype;
  key.c_dtype = p.c_dtype;
  return key;
}

void check(const Product& p) {
  SLUICE_CHECK(p.m > 0 && p.n > 0 && p.k > 0);
  for (const DType type : {p.a.dtype, p.b.dtype, p.c_dtype, p.bias_dtype}) {
    SLUICE_CHECK(is_act_dtype(type));
  }
  SLUICE_CHECK(!p.lower_only ||
               (p.m == p.n && p.a.dtype == DType::kF32 && p.b.dtype == DType::kF32));
  SLUICE_CHECK(!p.accumulate || (p.c_dtype == DType::kF32 && p.bias == nullptr));
}

}  // namespace

Product product_of(const GemmShape& shape, const void* a, const void* b, const void* bias,
                   void* c) {
  SLUICE_CHECK(shape.output == shape.dtype || shape.output == DType::kF32);
  Product p;
  p.m = shape.m;
  p.n = shape.n;
  p.k = shape.k;
  p.a = {a, shape.dtype, shape.transpose_a, shape.transpose_a ? shape.m : shape.k};
  p.b = {b, shape.dtype, shape.transpose_b, shape.transpose_b ? shape.k : shape.n};
  p.bias = bias;
  p.bias_dtype = shape.dtype;
  p.c = c;
  p.c_dtype = shape.output;
  p.c_stride = shape.n;
  return p;
}

Gemm::Gemm(const Parallel& parallel, Bf16Gemm mode) : parallel_(parallel) {
  if (mode == Bf16Gemm::kNative && !onednn_has_bf16()) {
    throw InputError(
        "native bf16 GEMM was requested, but oneDNN has none for this CPU; choose auto or f32");
  }
  native_bf16_ = mode == Bf16Gemm::kNative || (mode == Bf16Gemm::kAuto && onednn_has_fast_bf16());
  if (native_bf16_) matmuls_ = std::make_unique<MatmulCache>();
}

bool Gemm::runs_native(const Product& p) const {
  return native_bf16_ && is_bf16(p.a) && is_bf16(p.b) && p.c_dtype != DType::kF16 &&
         p.bias_dtype != DType::kF16;
}

std::uint64_t Gemm::workspace_bytes(const Product& p) const {
  check(p);
  if (runs_native(p)) {
    const auto workers = parallel_.workers(Tiles::of(p.m, p.n).count());
    return scratchpad_bytes(p) * static_cast<std::uint64_t>(workers);
  }
  const PanelPlan plan(p);
  return static_cast<std::uint64_t>(plan.a_bytes + plan.b_bytes +
                                    plan.tile_bytes * parallel_.workers(plan.most_tiles));
}

void Gemm::run(const Product& p, void* workspace) const {
  check(p);
  if (runs_native(p)) {
    run_native(p, static_cast<std::byte*>(workspace));
  } else {
    run_via_f32(p, static_cast<std::byte*>(workspace));
  }
}

void Gemm::run_via_f32(const Product& p, std::byte* workspace) const {
  const PanelPlan plan(p);
  auto* const a_panel = reinterpret_cast<float*>(workspace);
  auto* const b_panel = reinterpret_cast<float*>(workspace + plan.a_bytes);
  std::byte* const tiles_scratch = workspace + plan.a_bytes + plan.b_bytes;
  for (std::int64_t j = 0; j < plan.cols.parts; ++j) {
    const std::int64_t n = plan.cols.length(j);
    const Panel b(p.b, b_across(p), plan.cols.begin(j), n, p.k, b_panel);
    for (std::int64_t i = 0; i < plan.rows.parts; ++i) {
      const std::int64_t m = plan.rows.length(i);
      const Panel a(p.a, a_across(p), plan.rows.begin(i), m, p.k, a_panel);
      // A single panel of A is filled once; B's panel is filled once per column of super-blocks.
      const std::int64_t a_blocks = plan.rows.parts > 1 || j == 0 ? a.blocks() : 0;
      const std::int64_t b_blocks = i == 0 ? b.blocks() : 0;
      parallel_.for_each(a_blocks + b_blocks, [&](std::int64_t block) {
        block < a_blocks ? a.fill(block) : b.fill(block - a_blocks);
      });
      const Tiles tiles = Tiles::of(m, n);
      parallel_.for_each_worker(tiles.count(), [&](std::int64_t index, int worker) {
        const std::int64_t r = index % tiles.rows.parts, c = index / tiles.rows.parts;
        const Tile tile{plan.rows.begin(i) + tiles.rows.begin(r),
                        plan.cols.begin(j) + tiles.cols.begin(c),
                        tiles.rows.length(r),
                        tiles.cols.length(c),
                        tiles.rows.begin(r),
                        tiles.cols.begin(c)};
        if (p.lower_only && tile.col >= tile.row + tile.rows) return;
        auto* const scratch = reinterpret_cast<float*>(tiles_scratch + worker * plan.tile_bytes);
        compute_tile(p, tile, a, b, scratch);
      });
    }
  }
}

// The largest scratchpad of the (at most four) tile shapes, with and without a bias: a GemmShape
// does not say whether a bias will be passed.
std::uint64_t Gemm::scratchpad_bytes(const Product& p) const {
  const Tiles tiles = Tiles::of(p.m, p.n);
  std::uint64_t most = 0;
  for (const std::int64_t r : {std::int64_t{0}, tiles.rows.parts - 1}) {
    for (const std::int64_t c : {std::int64_t{0}, tiles.cols.parts - 1}) {
      auto key = key_of(p, tiles.rows.length(r), tiles.cols.length(c));
      for (const bool bias : {false, true}) {
        key.bias = bias && !p.accumulate;
        most = std::max<std::uint64_t>(most, matmuls_->scratchpad_bytes(key));
      }
    }
  }
  return round_up(most, kTensorAlignmentBytes);
}

void Gemm::run_native(const Product& p, std::byte* workspace) const {
  const Tiles tiles = Tiles::of(p.m, p.n);
  const std::uint64_t stride = scratchpad_bytes(p);
  parallel_.for_each_worker(tiles.count(), [&](std::int64_t index, int worker) {
    const std::int64_t r = index % tiles.rows.parts, c = index / tiles.rows.parts;
    const std::int64_t row = tiles.rows.begin(r), col = tiles.cols.begin(c);
    const auto key = key_of(p, tiles.rows.length(r), tiles.cols.length(c));
    const void* const bias = p.bias != nullptr ? at(p.bias, col, p.bias_dtype) : nullptr;
    matmuls_->run(key, at(p.a.data, p.a.transposed ? row : row * p.a.stride, p.a.dtype),
                  at(p.b.data, p.b.transposed ? col * p.b.stride : col, p.b.dtype), bias,
                  at(p.c, row * p.c_stride + col, p.c_dtype),
                  workspace + static_cast<std::uint64_t>(worker) * stride);
  });
}

}  // namespace sluice::kernels::host
