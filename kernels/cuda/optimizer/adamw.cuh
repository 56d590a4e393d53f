// The arithmetic of AdamW, for elementwise_rules.cu and for muon's other tensors (muon.cu).
#pragma once

#include "kernels/cuda/simt.cuh"
#include "kernels/optimizer.hpp"

namespace sluice::kernels::cuda {

// The constants that differ between tensors.
struct AdamWSteps {
  float lr_decay = 0;   // lr * decay
  float step_size = 0;  // lr / (1 - b1^step)
};
inline AdamWSteps adamw_steps(const AdamConstants& constants, const UpdateScalars& scalars,
                              const ParameterSegment& segment) {
  const float lr = scalars.lr * segment.lr_scale;
  return {lr * segment.weight_decay, lr / constants.bias_correction1};
}

// Updates the moments of Adam and AdamW. g: the gradient with scale and decay applied.
__device__ __forceinline__ void adam_moments(const AdamConstants& c, float g, float& m, float& v) {
  m = __fadd_rn(__fmul_rn(c.beta1, m), __fmul_rn(c.one_minus_beta1, g));
  v = __fadd_rn(__fmul_rn(c.beta2, v), __fmul_rn(c.one_minus_beta2, __fmul_rn(g, g)));
}
__device__ __forceinline__ float adam_step(const AdamConstants& c, float step_size, float m,
                                           float v, float w) {
  const float root = __fadd_rn(__fmul_rn(__fsqrt_rn(v), c.root_scale), c.epsilon);
  return __fsub_rn(w, __fmul_rn(step_size, __fdiv_rn(m, root)));
}

// Each operation is rounded on its own, in the order of optimizer.hpp.
__device__ __forceinline__ float adamw_element(const AdamConstants& c, float grad_scale,
                                               const AdamWSteps& steps, float grad, float& m,
                                               float& v, float w) {
  adam_moments(c, __fmul_rn(grad, grad_scale), m, v);
  return adam_step(c, steps.step_size, m, v, __fsub_rn(w, __fmul_rn(steps.lr_decay, w)));
}

}  // namespace sluice::kernels::cuda
