// LayerNorm and RMSNorm on a GPU. Arguments as in Kernels (kernels/kernels.hpp); all functions
// queue on `stream`. Formulas are the host's (kernels/host/norm.cpp). Sums are fp32 in an order
// that depends only on the shape, but differs from the host's. Errors: DeviceError if a launch
// fails, InternalError for a shape that breaks its bounds.
#pragma once

#include "kernels/cuda/stream.hpp"
#include "kernels/kernels.hpp"

namespace sluice::kernels::cuda {

void norm_forward(StreamHandle stream, const NormShape& shape, const void* x, const void* weight,
                  const void* bias, void* y, float* mean, float* rstd);
void norm_backward_input(StreamHandle stream, const NormShape& shape, const void* dy, const void* x,
                         const void* weight, const float* mean, const float* rstd,
                         const void* residual, void* dx);
void norm_backward_weight(StreamHandle stream, const NormShape& shape, const void* dy,
                          const void* x, const float* mean, const float* rstd, void* dweight,
                          void* dbias);

}  // namespace sluice::kernels::cuda
