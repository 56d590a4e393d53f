// The arithmetic of AdamW, for adamw.cpp and for muon's other tensors (muon.cpp). Included once per
// instruction set (see kernels/host/simd.hpp).
#if defined(SLUICE_KERNELS_HOST_OPTIMIZER_ADAMW) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_KERNELS_HOST_OPTIMIZER_ADAMW
#undef SLUICE_KERNELS_HOST_OPTIMIZER_ADAMW
#else
#define SLUICE_KERNELS_HOST_OPTIMIZER_ADAMW
#endif

#include <hwy/highway.h>

#include "kernels/host/simd.hpp"
#include "kernels/optimizer.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::host::HWY_NAMESPACE {

// Each operation is rounded on its own, in the order of optimizer.hpp.
struct AdamW {
  static constexpr int kMoments = 2;
  AdamConstants constants;
  float grad_scale;
  float lr_decay;   // lr * decay
  float step_size;  // lr / (1 - b1^step)

  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> grad, hn::Vec<D>& m, hn::Vec<D>& v,
                                   hn::Vec<D> w) const {
    const auto g = hn::Mul(grad, hn::Set(d, grad_scale));
    m = hn::Add(hn::Mul(hn::Set(d, constants.beta1), m),
                hn::Mul(hn::Set(d, constants.one_minus_beta1), g));
    v = hn::Add(hn::Mul(hn::Set(d, constants.beta2), v),
                hn::Mul(hn::Set(d, constants.one_minus_beta2), hn::Mul(g, g)));
    w = hn::Sub(w, hn::Mul(hn::Set(d, lr_decay), w));
    const auto root = hn::Add(hn::Mul(hn::Sqrt(v), hn::Set(d, constants.root_scale)),
                              hn::Set(d, constants.epsilon));
    return hn::Sub(w, hn::Mul(hn::Set(d, step_size), hn::Div(m, root)));
  }
};

}  // namespace sluice::kernels::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
