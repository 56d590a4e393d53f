// Language-model head fused with softmax cross-entropy; arguments as in Kernels
// (kernels/kernels.hpp).
//
// Forward processes a slice of rows at a time: fp32 logits [slice, vocab], then loss and lse per
// row; the logits become their gradient in place, and dx follows. The weight gradient processes a
// slice of the vocabulary at a time: logits [rows, slice] again, their gradient from lse, and the
// slice of dw. Gradients of logits stay fp32, except for bf16 with native GEMM: there they are
// rounded once.
#pragma once

#include <cstdint>

#include "kernels/kernels.hpp"

namespace sluice::kernels::host {

class Gemm;
class Parallel;

// Workspace of the larger pass: the logits of a slice (4 MiB, or 64 rows or columns if that is
// more), the workspace of their products, and for 16-bit dtypes an fp32 [slice, hidden].
std::uint64_t head_workspace_bytes(const Gemm& gemm, const HeadShape& shape);

void head_forward(const Parallel& parallel, const Gemm& gemm, const HeadShape& shape, const void* x,
                  const void* w, const std::int32_t* targets, float loss_scale, double* loss_sum,
                  float* lse, void* dx, void* workspace);
void head_backward_weight(const Parallel& parallel, const Gemm& gemm, const HeadShape& shape,
                          const void* x, const void* w, const std::int32_t* targets,
                          float loss_scale, const float* lse, void* dw, void* workspace);

// The steps of ranks that have runs of tokens each.
void head_statistics(const Parallel& parallel, const Gemm& gemm, const HeadShape& shape,
                     const void* x, const void* w, const std::int32_t* targets,
                     const RowStatistics& statistics, void* workspace);
void head_rescale(std::int64_t rows, const RowStatistics& statistics);
void head_loss(std::int64_t rows, const RowStatistics& statistics, double* loss_sum, float* lse);
void head_input_gradient(const Parallel& parallel, const Gemm& gemm, const HeadShape& shape,
                         const void* x, const void* w, const std::int32_t* targets,
                         float loss_scale, const float* lse, void* dx, void* workspace);

}  // namespace sluice::kernels::host
