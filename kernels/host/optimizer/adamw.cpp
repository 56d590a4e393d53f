// AdamW: one fused pass over gradient, states and weight.
//
// adamw_simd.hpp has the arithmetic of one vector, and stage_simd.hpp loops over elements and
// converts the formats. This file only adds the run-time choice of the instruction set and the
// division into tasks. Elements are independent, so the bits do not depend on either.
#include "kernels/host/optimizer/rules.hpp"
#include "kernels/host/optimizer/update_arrays.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/host/optimizer/adamw.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/host/optimizer/adamw_simd.hpp"
#include "kernels/host/optimizer/stage_simd.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::host::HWY_NAMESPACE {

void adamw_range(const UpdateArrays& arrays, const AdamConstants& constants,
                 const UpdateScalars& scalars, const ParameterSegment& segment, std::int64_t begin,
                 std::int64_t end) {
  const float lr = scalars.lr * segment.lr_scale;
  update_range(arrays,
               AdamW{constants, scalars.grad_scale, lr * segment.weight_decay,
                     lr / constants.bias_correction1},
               segment, begin, end);
}

}  // namespace sluice::kernels::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels::host {
namespace {

HWY_EXPORT(adamw_range);

}  // namespace

void adamw(const Parallel& parallel, const OptimizerOptions& options, const UpdateBuffers& buffers,
           std::span<const ParameterSegment> segments, const UpdateScalars& scalars) {
  update_segments(parallel, options, buffers, segments, scalars,
                  adam_constants(options, scalars.step), HWY_DYNAMIC_DISPATCH(adamw_range));
}

}  // namespace sluice::kernels::host
#endif  // HWY_ONCE
