// Elementwise layers on the host: residual add, GELU, SwiGLU, rotary embedding. Arguments as in
// Kernels (kernels/kernels.hpp). Arithmetic is fp32 without fused multiply-add, rounded once to
// nearest even, so the bits depend only on the input.
#pragma once

#include <cstdint>

#include "kernels/kernels.hpp"

namespace sluice::kernels::host {

class Parallel;

void add(const Parallel& parallel, const void* a, const void* b, void* out, std::int64_t elems,
         DType dtype);
void gelu_forward(const Parallel& parallel, const void* x, void* y, std::int64_t elems,
                  DType dtype);
void gelu_backward(const Parallel& parallel, const void* dy, const void* x, void* dx,
                   std::int64_t elems, DType dtype);
void swiglu_forward(const Parallel& parallel, const void* x, void* y, std::int64_t rows,
                    std::int64_t cols, DType dtype);
void swiglu_backward(const Parallel& parallel, const void* dy, const void* x, void* dx,
                     std::int64_t rows, std::int64_t cols, DType dtype);
// head_dim must be even. Angles are computed in fp64.
void rope(const Parallel& parallel, const AttentionShape& shape, float base, bool inverse,
          void* qkv);

}  // namespace sluice::kernels::host
