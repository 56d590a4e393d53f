// Language-model head fused with softmax cross-entropy on the GPU; arguments as in Kernels
// (kernels/kernels.hpp), loss_sum in device memory.
//
// Forward processes a slice of rows at a time: fp32 logits [slice, vocab]; one kernel computes the
// loss, lse and the logits' gradient of each row; dx of the slice is one product. The weight
// gradient processes a slice of the vocabulary at a time: logits [rows, slice] again, their
// gradient from lse, and dw of the slice. Gradients of logits are rounded once to the dtype, as
// tensor cores require; fp32 gradients replace the logits.
//
// A target outside the vocabulary makes its row's loss, the sum, and its row of dx NaN. Nothing
// outside the arrays is accessed.
#pragma once

#include <cstdint>

#include "base/units.hpp"
#include "kernels/cuda/gemm.hpp"
#include "kernels/cuda/stream.hpp"
#include "kernels/kernels.hpp"

namespace sluice::kernels::cuda {

// Limit of a slice's fp32 logits in bytes, and the least extent of a slice. Slices are multiples of
// `least`, so each begins at a multiple of 256 bytes. Every slice reads all of w (or x) once; with
// 128 MiB (640 rows of a vocabulary of 50,257) that is a small part of the work.
struct HeadSlices {
  std::int64_t logits_bytes = 128 * kMiB;
  std::int64_t least = 128;
};

// Workspace of the larger pass: a slice's logits, their gradient for 16-bit dtypes, the fp64 losses
// of all rows (forward only), and the products' workspace.
std::uint64_t head_workspace_bytes(const GemmBackend& gemm, const HeadShape& shape,
                                   const HeadSlices& slices = {});

void head_forward(StreamHandle stream, GemmBackend& gemm, const HeadShape& shape, const void* x,
                  const void* w, const std::int32_t* targets, float loss_scale, double* loss_sum,
                  float* lse, void* dx, void* workspace, const HeadSlices& slices = {});

// For ranks that have runs of tokens each (cross_entropy.hpp has the steps that need no logits).
// Both make the logits of a slice of rows at a time.
void head_statistics(StreamHandle stream, GemmBackend& gemm, const HeadShape& shape, const void* x,
                     const void* w, const std::int32_t* targets, const RowStatistics& statistics,
                     void* workspace, const HeadSlices& slices = {});

void head_input_gradient(StreamHandle stream, GemmBackend& gemm, const HeadShape& shape,
                         const void* x, const void* w, const std::int32_t* targets,
                         float loss_scale, const float* lse, void* dx, void* workspace,
                         const HeadSlices& slices = {});

void head_backward_weight(StreamHandle stream, GemmBackend& gemm, const HeadShape& shape,
                          const void* x, const void* w, const std::int32_t* targets,
                          float loss_scale, const float* lse, void* dw, void* workspace,
                          const HeadSlices& slices = {});

}  // namespace sluice::kernels::cuda
