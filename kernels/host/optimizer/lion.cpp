// Lion (Chen et al. 2023): one fused pass, with the sign of an interpolated momentum as the step.
//
// The rule is only the arithmetic of one vector; stage_simd.hpp loops over elements and converts
// the formats. The step uses beta1 and the stored momentum beta2. Elements are independent, so the
// bits depend neither on threads nor on the instruction set.
#include "kernels/host/optimizer/rules.hpp"
#include "kernels/host/optimizer/update_arrays.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/host/optimizer/lion.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/host/optimizer/stage_simd.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::host::HWY_NAMESPACE {

// Each operation is rounded on its own, in the order of optimizer.hpp. lr * sign is exact.
struct Lion {
  static constexpr int kMoments = 1;
  AdamConstants constants;  // only the betas are used
  float grad_scale;
  float lr_decay;  // lr * decay
  float lr;

  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> grad, hn::Vec<D>& m, hn::Vec<D>& /*v*/,
                                   hn::Vec<D> w) const {
    const auto g = hn::Mul(grad, hn::Set(d, grad_scale));
    const auto c = hn::Add(hn::Mul(hn::Set(d, constants.beta1), m),
                           hn::Mul(hn::Set(d, constants.one_minus_beta1), g));
    m = hn::Add(hn::Mul(hn::Set(d, constants.beta2), m),
                hn::Mul(hn::Set(d, constants.one_minus_beta2), g));
    w = hn::Sub(w, hn::Mul(hn::Set(d, lr_decay), w));
    // sign(0) is 0 and sign(NaN) is NaN, as in torch.sign.
    const auto step = hn::CopySign(hn::Set(d, lr), c);
    const auto moved = hn::IfThenElse(hn::Eq(c, hn::Zero(d)), c, step);
    return hn::Sub(w, hn::IfThenElse(hn::IsNaN(c), c, moved));
  }
};

void lion_range(const UpdateArrays& arrays, const AdamConstants& constants,
                const UpdateScalars& scalars, const ParameterSegment& segment, std::int64_t begin,
                std::int64_t end) {
  const float lr = scalars.lr * segment.lr_scale;
  update_range(arrays, Lion{constants, scalars.grad_scale, lr * segment.weight_decay, lr}, segment,
               begin, end);
}

}  // namespace sluice::kernels::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels::host {
namespace {

HWY_EXPORT(lion_range);

}  // namespace

void lion(const Parallel& parallel, const OptimizerOptions& options, const UpdateBuffers& buffers,
          std::span<const ParameterSegment> segments, const UpdateScalars& scalars) {
  update_segments(parallel, options, buffers, segments, scalars,
                  adam_constants(options, scalars.step), HWY_DYNAMIC_DISPATCH(lion_range));
}

}  // namespace sluice::kernels::host
#endif  // HWY_ONCE
