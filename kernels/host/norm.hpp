// LayerNorm and RMSNorm on the host. Arguments as in Kernels (kernels/kernels.hpp).
//
// Row sums use 16 fixed virtual lanes and column sums fixed blocks of rows. The bits depend only on
// the shape, neither on the thread count nor on the instruction set.
#pragma once

#include "kernels/kernels.hpp"

namespace sluice::kernels::host {

class Parallel;

void norm_forward(const Parallel& parallel, const NormShape& shape, const void* x,
                  const void* weight, const void* bias, void* y, float* mean, float* rstd);
void norm_backward_input(const Parallel& parallel, const NormShape& shape, const void* dy,
                         const void* x, const void* weight, const float* mean, const float* rstd,
                         const void* residual, void* dx);
void norm_backward_weight(const Parallel& parallel, const NormShape& shape, const void* dy,
                          const void* x, const float* mean, const float* rstd, void* dweight,
                          void* dbias);

}  // namespace sluice::kernels::host
