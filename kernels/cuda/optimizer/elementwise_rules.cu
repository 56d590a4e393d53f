// Elementwise rules: adamw, adam, sgd, lion. update_loop.cuh has the loop. The constants of a step
// are computed on the host by the code that the host's rules use, so the bits are the same.
#include <cmath>

#include "kernels/cuda/optimizer/adamw.cuh"
#include "kernels/cuda/optimizer/rules.hpp"
#include "kernels/cuda/optimizer/update_loop.cuh"

namespace sluice::kernels::cuda {
namespace {

struct AdamW {
  static constexpr int kMoments = 2;
  static constexpr bool kMaster = true;
  using Own = AdamWSteps;
  AdamConstants constants;
  float grad_scale;

  __device__ float operator()(const Own& own, std::int64_t, float grad, float& m, float& v,
                              float w) const {
    return adamw_element(constants, grad_scale, own, grad, m, v, w);
  }
};

struct Adam {
  static constexpr int kMoments = 2;
  static constexpr bool kMaster = true;
  struct Own {
    float decay = 0;
    float step_size = 0;  // lr / (1 - b1^step)
  };
  AdamConstants constants;
  float grad_scale;

  __device__ float operator()(const Own& own, std::int64_t, float grad, float& m, float& v,
                              float w) const {
    adam_moments(constants, __fadd_rn(__fmul_rn(grad, grad_scale), __fmul_rn(own.decay, w)), m, v);
    return adam_step(constants, own.step_size, m, v, w);
  }
};

// Without momentum, u = g.
template <bool kMomentum>
struct Sgd {
  static constexpr int kMoments = kMomentum ? 1 : 0;
  static constexpr bool kMaster = true;
  struct Own {
    float decay = 0, lr = 0;
  };
  float momentum;
  bool nesterov;
  float grad_scale;

  __device__ float operator()(const Own& own, std::int64_t, float grad, float& m, float&,
                              float w) const {
    const float g = __fadd_rn(__fmul_rn(grad, grad_scale), __fmul_rn(own.decay, w));
    float u = g;
    if constexpr (kMomentum) {
      m = __fadd_rn(__fmul_rn(momentum, m), g);
      u = nesterov ? __fadd_rn(g, __fmul_rn(momentum, m)) : m;
    }
    return __fsub_rn(w, __fmul_rn(own.lr, u));
  }
};

struct Lion {
  static constexpr int kMoments = 1;
  static constexpr bool kMaster = true;
  struct Own {
    float lr_decay = 0, lr = 0;
  };
  AdamConstants constants;  // only the betas are used
  float grad_scale;

  __device__ float operator()(const Own& own, std::int64_t, float grad, float& m, float&,
                              float w) const {
    const float g = __fmul_rn(grad, grad_scale);
    const float c =
        __fadd_rn(__fmul_rn(constants.beta1, m), __fmul_rn(constants.one_minus_beta1, g));
    m = __fadd_rn(__fmul_rn(constants.beta2, m), __fmul_rn(constants.one_minus_beta2, g));
    w = __fsub_rn(w, __fmul_rn(own.lr_decay, w));
    // sign(0) is 0 and sign(NaN) is NaN. lr * sign is exact.
    const float step = c == 0 || c != c ? c : copysignf(own.lr, c);
    return __fsub_rn(w, step);
  }
};

}  // namespace

void adamw(StreamHandle stream, const OptimizerOptions& options, const UpdateBuffers& buffers,
           std::span<const ParameterSegment> segments, const UpdateScalars& scalars) {
  const AdamConstants constants = adam_constants(options, scalars.step);
  run_elementwise(
      stream, update_arrays(options, buffers, scalars), AdamW{constants, scalars.grad_scale},
      segments,
      [&](const ParameterSegment& segment) { return adamw_steps(constants, scalars, segment); });
}

void adam(StreamHandle stream, const OptimizerOptions& options, const UpdateBuffers& buffers,
          std::span<const ParameterSegment> segments, const UpdateScalars& scalars) {
  const AdamConstants constants = adam_constants(options, scalars.step);
  run_elementwise(stream, update_arrays(options, buffers, scalars),
                  Adam{constants, scalars.grad_scale}, segments,
                  [&](const ParameterSegment& segment) {
                    const float lr = scalars.lr * segment.lr_scale;
                    return Adam::Own{segment.weight_decay, lr / constants.bias_correction1};
                  });
}

void sgd(StreamHandle stream, const OptimizerOptions& options, const UpdateBuffers& buffers,
         std::span<const ParameterSegment> segments, const UpdateScalars& scalars) {
  const UpdateArrays arrays = update_arrays(options, buffers, scalars);
  const auto run = [&](const auto& rule) {
    run_elementwise(stream, arrays, rule, segments, [&](const ParameterSegment& segment) {
      using Own = typename std::decay_t<decltype(rule)>::Own;
      return Own{segment.weight_decay, scalars.lr * segment.lr_scale};
    });
  };
  if (options.momentum == 0) {
    run(Sgd<false>{0, false, scalars.grad_scale});
  } else {
    run(Sgd<true>{static_cast<float>(options.momentum), options.nesterov, scalars.grad_scale});
  }
}

void lion(StreamHandle stream, const OptimizerOptions& options, const UpdateBuffers& buffers,
          std::span<const ParameterSegment> segments, const UpdateScalars& scalars) {
  const AdamConstants constants = adam_constants(options, scalars.step);
  run_elementwise(stream, update_arrays(options, buffers, scalars),
                  Lion{constants, scalars.grad_scale}, segments,
                  [&](const ParameterSegment& segment) {
                    const float lr = scalars.lr * segment.lr_scale;
                    return Lion::Own{lr * segment.weight_decay, lr};
                  });
}

}  // namespace sluice::kernels::cuda
