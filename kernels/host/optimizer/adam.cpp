// Adam with L2 decay: one fused pass over gradient, states and weight.
//
// The rule is only the arithmetic of one vector; stage_simd.hpp loops over elements and converts
// the formats. Tasks are cut by shape, and each element is updated on its own, so the bits depend
// neither on threads nor on the instruction set.
#include "kernels/host/optimizer/rules.hpp"
#include "kernels/host/optimizer/update_arrays.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/host/optimizer/adam.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/host/optimizer/stage_simd.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::host::HWY_NAMESPACE {

// Each operation is rounded on its own, in the order of optimizer.hpp.
struct Adam {
  static constexpr int kMoments = 2;
  AdamConstants constants;
  float grad_scale;
  float decay;
  float step_size;  // lr / (1 - b1^step)

  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> grad, hn::Vec<D>& m, hn::Vec<D>& v,
                                   hn::Vec<D> w) const {
    const auto scaled = hn::Mul(grad, hn::Set(d, grad_scale));
    const auto g = hn::Add(scaled, hn::Mul(hn::Set(d, decay), w));
    m = hn::Add(hn::Mul(hn::Set(d, constants.beta1), m),
                hn::Mul(hn::Set(d, constants.one_minus_beta1), g));
    v = hn::Add(hn::Mul(hn::Set(d, constants.beta2), v),
                hn::Mul(hn::Set(d, constants.one_minus_beta2), hn::Mul(g, g)));
    const auto root = hn::Add(hn::Mul(hn::Sqrt(v), hn::Set(d, constants.root_scale)),
                              hn::Set(d, constants.epsilon));
    return hn::Sub(w, hn::Mul(hn::Set(d, step_size), hn::Div(m, root)));
  }
};

void adam_range(const UpdateArrays& arrays, const AdamConstants& constants,
                const UpdateScalars& scalars, const ParameterSegment& segment, std::int64_t begin,
                std::int64_t end) {
  const float lr = scalars.lr * segment.lr_scale;
  update_range(
      arrays,
      Adam{constants, scalars.grad_scale, segment.weight_decay, lr / constants.bias_correction1},
      segment, begin, end);
}

}  // namespace sluice::kernels::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels::host {
namespace {

HWY_EXPORT(adam_range);

}  // namespace

void adam(const Parallel& parallel, const OptimizerOptions& options, const UpdateBuffers& buffers,
          std::span<const ParameterSegment> segments, const UpdateScalars& scalars) {
  update_segments(parallel, options, buffers, segments, scalars,
                  adam_constants(options, scalars.step), HWY_DYNAMIC_DISPATCH(adam_range));
}

}  // namespace sluice::kernels::host
#endif  // HWY_ONCE
