// The language-model head on the GPU (head.hpp has the outline): products by the GEMM backend and
// one cross-entropy kernel per slice, all queued on the stream without waiting for the host. Losses
// of all rows stay in the workspace and are added once, in row order.
#include "kernels/cuda/head.hpp"

#include <algorithm>
#include <cstddef>

#include "base/error.hpp"
#include "kernels/cuda/cross_entropy.hpp"

namespace sluice::kernels::cuda {
namespace {

void check(const HeadShape& shape) {
  SLUICE_CHECK(shape.rows > 0 && shape.hidden > 0 && shape.vocab > 0);
  SLUICE_CHECK(is_act_dtype(shape.dtype));
}

std::uint64_t padded(std::int64_t elems, std::size_t elem_bytes) {
  return round_up(static_cast<std::uint64_t>(elems) * elem_bytes, kTensorAlignmentBytes);
}

const void* at(const void* base, std::int64_t elems, DType dtype) {
  return static_cast<const std::byte*>(base) + elems * std::int64_t(dtype_bytes(dtype));
}
void* at(void* base, std::int64_t elems, DType dtype) {
  return const_cast<void*>(at(static_cast<const void*>(base), elems, dtype));
}

// Elements between rows of logits. Rows of every dtype begin at a multiple of 128 bytes, so
// products read them at full speed.
std::int64_t stride_of(std::int64_t cols) {
  return (cols + 63) / 64 * 64;
}

// Rows (or columns) of a slice of `extent`, each with `other` logits.
std::int64_t slice_of(std::int64_t extent, std::int64_t other, const HeadSlices& slices) {
  const std::int64_t fit = slices.logits_bytes / (other * std::int64_t{sizeof(float)});
  return std::min(extent, std::max(slices.least, fit / slices.least * slices.least));
}

// The workspace: losses (forward), logits and their gradient, then the products' part.
class Workspace {
 public:
  Workspace(const HeadShape& shape, std::int64_t logits, std::int64_t losses)
      : losses_bytes_(padded(losses, sizeof(double))),
        logits_bytes_(padded(logits, sizeof(float))),
        gradient_bytes_(shape.dtype == DType::kF32 ? 0 : padded(logits, dtype_bytes(shape.dtype))) {
  }

  std::uint64_t bytes() const { return losses_bytes_ + logits_bytes_ + gradient_bytes_; }
  double* losses(void* base) const { return static_cast<double*>(base); }
  float* logits(void* base) const {
    return reinterpret_cast<float*>(bytes_at(base, losses_bytes_));
  }
  void* gradient(void* base) const {
    return bytes_at(base, losses_bytes_ + (gradient_bytes_ == 0 ? 0 : logits_bytes_));
  }
  void* products(void* base) const { return bytes_at(base, bytes()); }

 private:
  static std::byte* bytes_at(void* base, std::uint64_t offset) {
    return static_cast<std::byte*>(base) + offset;
  }
  std::uint64_t losses_bytes_, logits_bytes_, gradient_bytes_;
};

Workspace forward_workspace(const HeadShape& shape, const HeadSlices& slices) {
  return {shape, slice_of(shape.rows, shape.vocab, slices) * stride_of(shape.vocab), shape.rows};
}

Workspace weight_workspace(const HeadShape& shape, const HeadSlices& slices) {
  return {shape, shape.rows * stride_of(slice_of(shape.vocab, shape.rows, slices)), 0};
}

// logits [rows, cols] = x [rows, hidden] w [cols, hidden]^T.
GemmShape logits_shape(const HeadShape& shape, std::int64_t rows, std::int64_t cols) {
  return {.m = rows,
          .n = cols,
          .k = shape.hidden,
          .transpose_b = true,
          .dtype = shape.dtype,
          .output = DType::kF32};
}

// dx [rows, hidden] = gradient [rows, vocab] w [vocab, hidden].
GemmShape input_shape(const HeadShape& shape, std::int64_t rows) {
  return {
      .m = rows, .n = shape.hidden, .k = shape.vocab, .dtype = shape.dtype, .output = shape.dtype};
}

// dw [cols, hidden] = gradient [rows, cols]^T x [rows, hidden].
GemmShape weight_shape(const HeadShape& shape, std::int64_t cols) {
  return {.m = cols,
          .n = shape.hidden,
          .k = shape.rows,
          .transpose_a = true,
          .dtype = shape.dtype,
          .output = shape.dtype};
}

// Makes the logits of a slice of rows at a time, and calls use(block, the slice's first row).
template <class Use>
void for_each_row_slice(StreamHandle stream, GemmBackend& backend, const HeadShape& shape,
                        const void* x, const void* w, const std::int32_t* targets, void* workspace,
                        const HeadSlices& slices, const Use& use) {
  const Workspace parts = forward_workspace(shape, slices);
  const std::int64_t slice = slice_of(shape.rows, shape.vocab, slices);
  const std::int64_t stride = stride_of(shape.vocab);
  for (std::int64_t begin = 0; begin < shape.rows; begin += slice) {
    const std::int64_t rows = std::min(slice, shape.rows - begin);
    gemm(stream, backend, logits_shape(shape, rows, shape.vocab),
         at(x, begin * shape.hidden, shape.dtype), w, nullptr, parts.logits(workspace),
         parts.products(workspace), {.c = stride});
    use(LogitsBlock{.logits = parts.logits(workspace),
                    .gradient = parts.gradient(workspace),
                    .dtype = shape.dtype,
                    .rows = rows,
                    .cols = shape.vocab,
                    .stride = stride,
                    .first = shape.first_token,
                    .targets = targets + begin,
                    .loss_scale = 1.0f},
        begin);
  }
}

}  // namespace

std::uint64_t head_workspace_bytes(const GemmBackend& gemm, const HeadShape& shape,
                                   const HeadSlices& slices) {
  check(shape);
  return std::max(forward_workspace(shape, slices).bytes(),
                  weight_workspace(shape, slices).bytes()) +
         gemm.workspace_bytes();
}

void head_forward(StreamHandle stream, GemmBackend& backend, const HeadShape& shape, const void* x,
                  const void* w, const std::int32_t* targets, float loss_scale, double* loss_sum,
                  float* lse, void* dx, void* workspace, const HeadSlices& slices) {
  check(shape);
  SLUICE_CHECK(shape.first_token == 0);
  const Workspace parts = forward_workspace(shape, slices);
  for_each_row_slice(stream, backend, shape, x, w, targets, workspace, slices,
                     [&](LogitsBlock block, std::int64_t begin) {
                       block.loss_scale = loss_scale;
                       cross_entropy_rows(stream, block, dx != nullptr,
                                          parts.losses(workspace) + begin, lse + begin);
                       if (dx == nullptr) return;
                       gemm(stream, backend, input_shape(shape, block.rows), block.gradient, w,
                            nullptr, at(dx, begin * shape.hidden, shape.dtype),
                            parts.products(workspace), {.a = block.stride});
                     });
  sum_in_order(stream, parts.losses(workspace), shape.rows, loss_sum);
}

void head_statistics(StreamHandle stream, GemmBackend& backend, const HeadShape& shape,
                     const void* x, const void* w, const std::int32_t* targets,
                     const RowStatistics& statistics, void* workspace, const HeadSlices& slices) {
  check(shape);
  for_each_row_slice(stream, backend, shape, x, w, targets, workspace, slices,
                     [&](const LogitsBlock& block, std::int64_t begin) {
                       row_statistics(stream, block,
                                      {.own_max = statistics.own_max + begin,
                                       .max = statistics.max + begin,
                                       .sum = statistics.sum + begin,
                                       .target = statistics.target + begin});
                     });
}

void head_input_gradient(StreamHandle stream, GemmBackend& backend, const HeadShape& shape,
                         const void* x, const void* w, const std::int32_t* targets,
                         float loss_scale, const float* lse, void* dx, void* workspace,
                         const HeadSlices& slices) {
  check(shape);
  const Workspace parts = forward_workspace(shape, slices);
  for_each_row_slice(stream, backend, shape, x, w, targets, workspace, slices,
                     [&](LogitsBlock block, std::int64_t begin) {
                       block.loss_scale = loss_scale;
                       cross_entropy_gradient(stream, block, lse + begin);
                       gemm(stream, backend, input_shape(shape, block.rows), block.gradient, w,
                            nullptr, at(dx, begin * shape.hidden, shape.dtype),
                            parts.products(workspace), {.a = block.stride});
                     });
}

void head_backward_weight(StreamHandle stream, GemmBackend& backend, const HeadShape& shape,
                          const void* x, const void* w, const std::int32_t* targets,
                          float loss_scale, const float* lse, void* dw, void* workspace,
                          const HeadSlices& slices) {
  check(shape);
  const Workspace parts = weight_workspace(shape, slices);
  const std::int64_t slice = slice_of(shape.vocab, shape.rows, slices);
  const std::int64_t stride = stride_of(slice);
  for (std::int64_t begin = 0; begin < shape.vocab; begin += slice) {
    const std::int64_t cols = std::min(slice, shape.vocab - begin);
    gemm(stream, backend, logits_shape(shape, shape.rows, cols), x,
         at(w, begin * shape.hidden, shape.dtype), nullptr, parts.logits(workspace),
         parts.products(workspace), {.c = stride});
    const LogitsBlock block{.logits = parts.logits(workspace),
                            .gradient = parts.gradient(workspace),
                            .dtype = shape.dtype,
                            .rows = shape.rows,
                            .cols = cols,
                            .stride = stride,
                            .first = shape.first_token + begin,
                            .targets = targets,
                            .loss_scale = loss_scale};
    cross_entropy_gradient(stream, block, lse);
    gemm(stream, backend, weight_shape(shape, cols), block.gradient, x, nullptr,
         at(dw, begin * shape.hidden, shape.dtype), parts.products(workspace), {.a = stride});
  }
}

}  // namespace sluice::kernels::cuda
