// GELU, SwiGLU and the rotary embedding on a GPU. Arguments as in Kernels (kernels/kernels.hpp);
// all functions queue on `stream`. They compute in fp32 with the host's formulas
// (kernels/host/activations.cpp) and round once. For 16-bit dtypes exp and division are the GPU's
// approximations, with errors far below the rounding. Errors: DeviceError if a launch fails,
// InternalError for a shape that breaks its bounds.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.hpp"
#include "kernels/kernels.hpp"

namespace sluice::kernels::cuda {

void gelu_forward(StreamHandle stream, const void* x, void* y, std::int64_t elems, DType dtype);
void gelu_backward(StreamHandle stream, const void* dy, const void* x, void* dx, std::int64_t elems,
                   DType dtype);
void swiglu_forward(StreamHandle stream, const void* x, void* y, std::int64_t rows,
                    std::int64_t cols, DType dtype);
void swiglu_backward(StreamHandle stream, const void* dy, const void* x, void* dx,
                     std::int64_t rows, std::int64_t cols, DType dtype);
// head_dim must be even. Angles are fp64, as on the host.
void rope(StreamHandle stream, const AttentionShape& shape, float base, bool inverse, void* qkv);

}  // namespace sluice::kernels::cuda
