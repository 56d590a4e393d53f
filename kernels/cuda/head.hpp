// Language-model head fused with softmax cross-entropy on the GPU; arguments as in Kernels
// (kernels/kernels.hpp), loss_sum in device memory.
//
// Forward: a slice of rows at a time: fp32 logits [slice, vocab], then one kernel makes loss, lse
// and the logits' gradient of each row, and dx of the slice is one product. Weight gradient: a
// slice of the vocabulary at a time: logits [rows, slice] again, their gradient from lse, and dw of
// the slice. Gradients of logits are rounded once to the dtype, as the tensor cores take them;
// those of fp32 replace the logits.
//
// A target outside the vocabulary makes its row's loss, and so the sum, NaN, as well as its row of
// dx; nothing outside the arrays is touched.
#pragma once

#include <cstdint>

#include "base/units.hpp"
#include "kernels/cuda/gemm.hpp"
#include "kernels/cuda/stream.hpp"
#include "kernels/kernels.hpp"

namespace sluice::kernels::cuda {

// Bytes of fp32 logits that a slice may have, and its least extent: slices are multiples of that,
// so that each begins at a multiple of 256 bytes. Every slice reads all of w (or x) once: with 128
// MiB (640 rows of a vocabulary of 50,257) that is a small part of the work.
struct HeadSlices {
  std::int64_t logits_bytes = 128 * kMiB;
  std::int64_t least = 128;
};

// The larger of the two passes: logits of a slice, for 16-bit dtypes their gradient, for the
// forward pass the fp64 losses of all rows, and the workspace of the products.
std::uint64_t head_workspace_bytes(const GemmBackend& gemm, const HeadShape& shape,
                                   const HeadSlices& slices = {});

void head_forward(StreamHandle stream, GemmBackend& gemm, const HeadShape& shape, const void* x,
                  const void* w, const std::int32_t* targets, float loss_scale, double* loss_sum,
                  float* lse, void* dx, void* workspace, const HeadSlices& slices = {});

void head_backward_weight(StreamHandle stream, GemmBackend& gemm, const HeadShape& shape,
                          const void* x, const void* w, const std::int32_t* targets,
                          float loss_scale, const float* lse, void* dw, void* workspace,
                          const HeadSlices& slices = {});

}  // namespace sluice::kernels::cuda
