// SGD with optional momentum: one fused pass over gradient, momentum and weight.
//
// The rule is only the arithmetic of one vector; stage_simd.hpp loops over elements and converts
// the formats. Without momentum the rule has no moment and reads none. Elements are independent, so
// the bits depend neither on threads nor on the instruction set.
#include "kernels/host/optimizer/rules.hpp"
#include "kernels/host/optimizer/update_arrays.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/host/optimizer/sgd.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/host/optimizer/stage_simd.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::host::HWY_NAMESPACE {

// Each operation is rounded on its own, in the order of optimizer.hpp. Without momentum, u = g.
template <bool kMomentum>
struct Sgd {
  static constexpr int kMoments = kMomentum ? 1 : 0;
  float momentum;
  bool nesterov;
  float grad_scale;
  float decay;
  float lr;

  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> grad, hn::Vec<D>& m, hn::Vec<D>& /*v*/,
                                   hn::Vec<D> w) const {
    const auto scaled = hn::Mul(grad, hn::Set(d, grad_scale));
    const auto g = hn::Add(scaled, hn::Mul(hn::Set(d, decay), w));
    // u is the direction of the step: the gradient, the momentum, or Nesterov's look ahead.
    auto u = g;
    if constexpr (kMomentum) {
      const auto factor = hn::Set(d, momentum);
      m = hn::Add(hn::Mul(factor, m), g);
      u = nesterov ? hn::Add(g, hn::Mul(factor, m)) : m;
    }
    return hn::Sub(w, hn::Mul(hn::Set(d, lr), u));
  }
};

void sgd_range(const UpdateArrays& arrays, const OptimizerOptions& options,
               const UpdateScalars& scalars, const ParameterSegment& segment, std::int64_t begin,
               std::int64_t end) {
  const auto momentum = static_cast<float>(options.momentum);
  const float lr = scalars.lr * segment.lr_scale;
  if (options.momentum == 0) {
    update_range(arrays, Sgd<false>{0, false, scalars.grad_scale, segment.weight_decay, lr},
                 segment, begin, end);
  } else {
    update_range(
        arrays, Sgd<true>{momentum, options.nesterov, scalars.grad_scale, segment.weight_decay, lr},
        segment, begin, end);
  }
}

}  // namespace sluice::kernels::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels::host {
namespace {

HWY_EXPORT(sgd_range);

}  // namespace

void sgd(const Parallel& parallel, const OptimizerOptions& options, const UpdateBuffers& buffers,
         std::span<const ParameterSegment> segments, const UpdateScalars& scalars) {
  update_segments(parallel, options, buffers, segments, scalars, options,
                  HWY_DYNAMIC_DISPATCH(sgd_range));
}

}  // namespace sluice::kernels::host
#endif  // HWY_ONCE
