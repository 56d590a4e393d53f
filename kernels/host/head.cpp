// The language-model head without a full matrix of logits.
//
// Forward, for each slice of rows:  L = x w^T;  loss = log sum exp(L) - L[target];  the row becomes
// dL = loss_scale * (softmax(L) - onehot);  dx = dL w, summed over steps of 8,192 columns so that
// the widened panels of w stay small. Losses are added in row order in fp64.
// Backward, for each slice of the vocabulary:  L is computed again, softmax comes from the saved
// lse, and dw of the slice is dL^T x.
//
// Among ranks with a run of tokens each the forward pass has steps, each of which makes its logits:
// statistics of rows, and dx from the lse of whole rows.
//
// Every element of dx and dw is one sum in a fixed order. Recomputing the logits costs one more
// product and saves rows * vocab * 4 bytes. With native bf16 the gradient rows are narrowed in
// place and take the first half of each fp32 row.
#include "kernels/host/head.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/error.hpp"
#include "base/units.hpp"
#include "kernels/host/gemm.hpp"
#include "kernels/host/gemm_cut.hpp"
#include "kernels/host/parallel.hpp"
#include "kernels/host/rows.hpp"

namespace sluice::kernels::host {
namespace {

// A slice reads all of w (or x) once, whatever its size. 64 rows keep that a small part of the
// work; 4 MiB keep the logits in the last-level cache.
constexpr std::int64_t kLogitsBytes = 4 * kMiB;
constexpr std::int64_t kLeastSlice = 64;
// Columns of one step of dx = dlogits w. Steps run one after the other over the vocabulary, so that
// the widened panels of w stay small.
constexpr std::int64_t kVocabStep = 8192;

// Cuts `extent` rows (or columns) into slices; each row has `other` logits.
Cut slices(std::int64_t extent, std::int64_t other) {
  const std::int64_t rows = kLogitsBytes / (other * std::int64_t{sizeof(float)});
  return Cut(extent, std::max(kLeastSlice, rows / kLeastSlice * kLeastSlice), 1);
}

std::uint64_t padded(std::int64_t elems, std::size_t elem_bytes) {
  return round_up(static_cast<std::uint64_t>(elems) * elem_bytes, kTensorAlignmentBytes);
}

void check(const HeadShape& shape) {
  SLUICE_CHECK(shape.rows > 0 && shape.hidden > 0 && shape.vocab > 0);
  SLUICE_CHECK(is_act_dtype(shape.dtype));
}

const void* offset(const void* base, std::int64_t elems, DType dtype) {
  return static_cast<const std::byte*>(base) + elems * std::int64_t(dtype_bytes(dtype));
}

// The products of both passes over one buffer of logits with `stride` floats between rows. Later
// the buffer holds the gradient of the logits.
class Products {
 public:
  Products(const Gemm& gemm, const HeadShape& shape, std::int64_t stride)
      : gemm_(gemm), shape_(shape), stride_(stride) {}

  // Whether gradients of logits lie as bf16 at the start of each fp32 row.
  bool narrow() const { return gemm_.native_bf16() && shape_.dtype == DType::kBF16; }

  // logits [rows, cols] = x[rows, hidden] w[cols, hidden]^T.
  Product logits(const void* x, std::int64_t rows, const void* w, std::int64_t cols,
                 float* to) const {
    Product p;
    p.m = rows, p.n = cols, p.k = shape_.hidden;
    p.a = {x, shape_.dtype, false, shape_.hidden};
    p.b = {w, shape_.dtype, true, shape_.hidden};
    p.c = to, p.c_stride = stride_;
    return p;
  }

  // sums [rows, hidden] (fp32; += if `add`) = dlogits[:, first .. first + steps] w[those rows].
  Product dx_step(const float* dlogits, std::int64_t rows, const void* w, std::int64_t first,
                  std::int64_t steps, bool add, float* sums) const {
    Product p;
    p.m = rows, p.n = shape_.hidden, p.k = steps;
    p.a = gradient(dlogits, first, false);
    p.b = {offset(w, first * shape_.hidden, shape_.dtype), shape_.dtype, false, shape_.hidden};
    p.c = sums, p.c_stride = shape_.hidden;
    p.accumulate = add;
    return p;
  }

  // dw [cols, hidden] = dlogits[rows, cols]^T x[rows, hidden].
  Product dw(const float* dlogits, std::int64_t cols, const void* x, void* to) const {
    Product p;
    p.m = cols, p.n = shape_.hidden, p.k = shape_.rows;
    p.a = gradient(dlogits, 0, true);
    p.b = {x, shape_.dtype, false, shape_.hidden};
    p.c = to, p.c_dtype = shape_.dtype, p.c_stride = shape_.hidden;
    return p;
  }

 private:
  Operand gradient(const float* dlogits, std::int64_t first, bool transposed) const {
    if (!narrow()) return {dlogits + first, DType::kF32, transposed, stride_};
    return {offset(dlogits, first, DType::kBF16), DType::kBF16, transposed, 2 * stride_};
  }

  const Gemm& gemm_;
  const HeadShape& shape_;
  std::int64_t stride_;
};

// Workspace of head_forward: logits, losses, fp32 dx of a slice (16-bit dtypes only), GEMM.
struct ForwardPlan {
  Cut rows, steps;
  std::int64_t stride;
  std::uint64_t logits_bytes, losses_bytes, sums_bytes, gemm_bytes = 0;

  ForwardPlan(const Gemm& gemm, const HeadShape& shape)
      : rows(slices(shape.rows, shape.vocab)),
        steps(shape.vocab, kVocabStep, 64),
        stride(unaliased_stride(shape.vocab)),
        logits_bytes(padded(rows.size * stride, sizeof(float))),
        losses_bytes(padded(rows.size, sizeof(double))),
        sums_bytes(shape.dtype == DType::kF32 ? 0
                                              : padded(rows.size * shape.hidden, sizeof(float))) {
    const Products products(gemm, shape, stride);
    for (const std::int64_t slice : {rows.size, rows.length(rows.parts - 1)}) {
      const auto logits = products.logits(nullptr, slice, nullptr, shape.vocab, nullptr);
      gemm_bytes = std::max(gemm_bytes, gemm.workspace_bytes(logits));
      for (const std::int64_t step : {steps.size, steps.length(steps.parts - 1)}) {
        for (const bool add : {false, true}) {
          const auto dx = products.dx_step(nullptr, slice, nullptr, 0, step, add, nullptr);
          gemm_bytes = std::max(gemm_bytes, gemm.workspace_bytes(dx));
        }
      }
    }
  }
  std::uint64_t bytes() const { return logits_bytes + losses_bytes + sums_bytes + gemm_bytes; }
};

// Workspace of head_backward_weight: logits, GEMM.
struct WeightPlan {
  Cut cols;
  std::int64_t stride;
  std::uint64_t logits_bytes, gemm_bytes = 0;

  WeightPlan(const Gemm& gemm, const HeadShape& shape)
      : cols(slices(shape.vocab, shape.rows)),
        stride(unaliased_stride(cols.size)),
        logits_bytes(padded(shape.rows * stride, sizeof(float))) {
    const Products products(gemm, shape, stride);
    for (const std::int64_t slice : {cols.size, cols.length(cols.parts - 1)}) {
      const auto logits = products.logits(nullptr, shape.rows, nullptr, slice, nullptr);
      const auto dw = products.dw(nullptr, slice, nullptr, nullptr);
      gemm_bytes = std::max({gemm_bytes, gemm.workspace_bytes(logits), gemm.workspace_bytes(dw)});
    }
  }
  std::uint64_t bytes() const { return logits_bytes + gemm_bytes; }
};

struct RowLoss {
  double loss;
  float lse;
};

// Computes the loss of one row of logits. With `gradient` the row becomes
// loss_scale * (softmax - onehot).
RowLoss finish_row(float* row, std::int64_t vocab, std::int32_t target, float loss_scale,
                   bool gradient, bool narrow) {
  SLUICE_CHECK(target >= 0 && target < vocab);
  const float target_logit = row[target];
  const float shift = row_max(row, vocab);
  const float sum =
      gradient ? exp_row(row, vocab, 1.0f, shift) : sum_exp_row(row, vocab, 1.0f, shift);
  // fp64 keeps the small part of the difference of two large logits.
  const double log_sum = std::log(static_cast<double>(sum));
  if (gradient) {
    // loss_scale * (p - 1) from the unscaled p: a subtraction after scaling would round twice.
    const float target_probability = row[target] / sum;
    scale_row(row, vocab, loss_scale / sum);
    row[target] = loss_scale * (target_probability - 1.0f);
    if (narrow) narrow_row_in_place(row, vocab);
  }
  return {log_sum + (static_cast<double>(shift) - static_cast<double>(target_logit)),
          static_cast<float>(static_cast<double>(shift) + log_sum)};
}

// The parts of the workspace of a forward pass.
struct ForwardMemory {
  float* logits;
  double* losses;
  float* sums;
  std::byte* scratch;

  ForwardMemory(const ForwardPlan& plan, void* workspace) {
    auto* const bytes = static_cast<std::byte*>(workspace);
    logits = reinterpret_cast<float*>(bytes);
    losses = reinterpret_cast<double*>(bytes + plan.logits_bytes);
    sums = reinterpret_cast<float*>(bytes + plan.logits_bytes + plan.losses_bytes);
    scratch = bytes + plan.logits_bytes + plan.losses_bytes + plan.sums_bytes;
  }
};

// to [rows, hidden] = dlogits w, from gradients of the logits of a slice of rows.
void write_dx(const Parallel& parallel, const Gemm& gemm, const HeadShape& shape,
              const ForwardPlan& plan, const ForwardMemory& memory, std::int64_t rows,
              const void* w, void* to) {
  const Products products(gemm, shape, plan.stride);
  // 16-bit dx is summed in fp32 over all steps and rounded once below.
  float* const into = shape.dtype == DType::kF32 ? static_cast<float*>(to) : memory.sums;
  for (std::int64_t step = 0; step < plan.steps.parts; ++step) {
    gemm.run(products.dx_step(memory.logits, rows, w, plan.steps.begin(step),
                              plan.steps.length(step), step > 0, into),
             memory.scratch);
  }
  if (into != memory.sums) return;
  parallel.for_each(rows, [&](std::int64_t r) {
    store_block({.rows = 1,
                 .cols = shape.hidden,
                 .from = memory.sums + r * shape.hidden,
                 .from_stride = shape.hidden,
                 .to = const_cast<void*>(offset(to, r * shape.hidden, shape.dtype)),
                 .to_dtype = shape.dtype,
                 .to_stride = shape.hidden});
  });
}

// The row of logits [first, first + cols) becomes loss_scale * (softmax - onehot), with the whole
// row's lse.
void differentiate_row(float* row, std::int64_t cols, std::int64_t target, float loss_scale,
                       float lse, bool narrow) {
  exp_row(row, cols, 1.0f, lse);
  if (target >= 0 && target < cols) row[target] -= 1.0f;
  scale_row(row, cols, loss_scale);
  if (narrow) narrow_row_in_place(row, cols);
}

}  // namespace

std::uint64_t head_workspace_bytes(const Gemm& gemm, const HeadShape& shape) {
  check(shape);
  return std::max(ForwardPlan(gemm, shape).bytes(), WeightPlan(gemm, shape).bytes());
}

void head_forward(const Parallel& parallel, const Gemm& gemm, const HeadShape& shape, const void* x,
                  const void* w, const std::int32_t* targets, float loss_scale, double* loss_sum,
                  float* lse, void* dx, void* workspace) {
  check(shape);
  const ForwardPlan plan(gemm, shape);
  const Products products(gemm, shape, plan.stride);
  const ForwardMemory memory(plan, workspace);
  float* const logits = memory.logits;
  double total = 0.0;
  for (std::int64_t slice = 0; slice < plan.rows.parts; ++slice) {
    const std::int64_t begin = plan.rows.begin(slice), rows = plan.rows.length(slice);
    gemm.run(
        products.logits(offset(x, begin * shape.hidden, shape.dtype), rows, w, shape.vocab, logits),
        memory.scratch);
    parallel.for_each(rows, [&](std::int64_t r) {
      const RowLoss row = finish_row(logits + r * plan.stride, shape.vocab, targets[begin + r],
                                     loss_scale, dx != nullptr, products.narrow());
      memory.losses[r] = row.loss;
      lse[begin + r] = row.lse;
    });
    // Fixed order: the sum of the losses must not depend on threads.
    for (std::int64_t r = 0; r < rows; ++r) total += memory.losses[r];
    if (dx == nullptr) continue;
    write_dx(parallel, gemm, shape, plan, memory, rows, w,
             const_cast<void*>(offset(dx, begin * shape.hidden, shape.dtype)));
  }
  *loss_sum = total;
}

void head_statistics(const Parallel& parallel, const Gemm& gemm, const HeadShape& shape,
                     const void* x, const void* w, const std::int32_t* targets,
                     const RowStatistics& statistics, void* workspace) {
  check(shape);
  const ForwardPlan plan(gemm, shape);
  const Products products(gemm, shape, plan.stride);
  const ForwardMemory memory(plan, workspace);
  for (std::int64_t slice = 0; slice < plan.rows.parts; ++slice) {
    const std::int64_t begin = plan.rows.begin(slice), rows = plan.rows.length(slice);
    gemm.run(products.logits(offset(x, begin * shape.hidden, shape.dtype), rows, w, shape.vocab,
                             memory.logits),
             memory.scratch);
    parallel.for_each(rows, [&](std::int64_t r) {
      const float* const row = memory.logits + r * plan.stride;
      const std::int64_t at = begin + r, target = targets[at] - shape.first_token;
      const float max = row_max(row, shape.vocab);
      statistics.own_max[at] = statistics.max[at] = max;
      statistics.sum[at] = sum_exp_row(row, shape.vocab, 1.0f, max);
      statistics.target[at] = target >= 0 && target < shape.vocab ? row[target] : 0.0f;
    });
  }
}

void head_rescale(std::int64_t rows, const RowStatistics& statistics) {
  for (std::int64_t r = 0; r < rows; ++r) {
    statistics.sum[r] *= std::exp(statistics.own_max[r] - statistics.max[r]);
  }
}

// As finish_row() has it.
void head_loss(std::int64_t rows, const RowStatistics& statistics, double* loss_sum, float* lse) {
  double total = 0.0;
  for (std::int64_t r = 0; r < rows; ++r) {
    const double log_sum = std::log(static_cast<double>(statistics.sum[r]));
    const auto shift = static_cast<double>(statistics.max[r]);
    total += log_sum + (shift - static_cast<double>(statistics.target[r]));
    lse[r] = static_cast<float>(shift + log_sum);
  }
  *loss_sum = total;
}

void head_input_gradient(const Parallel& parallel, const Gemm& gemm, const HeadShape& shape,
                         const void* x, const void* w, const std::int32_t* targets,
                         float loss_scale, const float* lse, void* dx, void* workspace) {
  check(shape);
  const ForwardPlan plan(gemm, shape);
  const Products products(gemm, shape, plan.stride);
  const ForwardMemory memory(plan, workspace);
  for (std::int64_t slice = 0; slice < plan.rows.parts; ++slice) {
    const std::int64_t begin = plan.rows.begin(slice), rows = plan.rows.length(slice);
    gemm.run(products.logits(offset(x, begin * shape.hidden, shape.dtype), rows, w, shape.vocab,
                             memory.logits),
             memory.scratch);
    parallel.for_each(rows, [&](std::int64_t r) {
      differentiate_row(memory.logits + r * plan.stride, shape.vocab,
                        targets[begin + r] - shape.first_token, loss_scale, lse[begin + r],
                        products.narrow());
    });
    write_dx(parallel, gemm, shape, plan, memory, rows, w,
             const_cast<void*>(offset(dx, begin * shape.hidden, shape.dtype)));
  }
}

void head_backward_weight(const Parallel& parallel, const Gemm& gemm, const HeadShape& shape,
                          const void* x, const void* w, const std::int32_t* targets,
                          float loss_scale, const float* lse, void* dw, void* workspace) {
  check(shape);
  const WeightPlan plan(gemm, shape);
  const Products products(gemm, shape, plan.stride);
  auto* const logits = static_cast<float*>(workspace);
  std::byte* const scratch = static_cast<std::byte*>(workspace) + plan.logits_bytes;
  for (std::int64_t slice = 0; slice < plan.cols.parts; ++slice) {
    const std::int64_t begin = plan.cols.begin(slice), cols = plan.cols.length(slice);
    const std::int64_t first = begin * shape.hidden;
    gemm.run(products.logits(x, shape.rows, offset(w, first, shape.dtype), cols, logits), scratch);
    parallel.for_blocks(shape.rows, 64, [&](std::int64_t row_begin, std::int64_t row_end) {
      for (std::int64_t r = row_begin; r < row_end; ++r) {
        differentiate_row(logits + r * plan.stride, cols, targets[r] - shape.first_token - begin,
                          loss_scale, lse[r], products.narrow());
      }
    });
    gemm.run(products.dw(logits, cols, x, const_cast<void*>(offset(dw, first, shape.dtype))),
             scratch);
  }
}

}  // namespace sluice::kernels::host
