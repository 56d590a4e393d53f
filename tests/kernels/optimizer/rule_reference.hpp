// The elementwise rules twice: as kernels/optimizer.hpp words them, one fp32 operation at a time,
// and in fp64 as their papers and torch.optim write them.
#pragma once

#include <cmath>

#include "kernels/optimizer.hpp"

namespace sluice::kernels::host {

struct RuleNumbers {
  float m = 0, v = 0, w = 0;
};

// grad: already rounded, not yet scaled.
inline void scalar_rule(const OptimizerOptions& options, const UpdateScalars& at,
                        const ParameterSegment& segment, float grad, RuleNumbers& x) {
  const AdamConstants c = adam_constants(options, at.step);
  const float lr = at.lr * segment.lr_scale;
  const float decay = segment.weight_decay;
  float g = grad * at.grad_scale;
  switch (options.rule) {
    case OptimizerRule::kAdamW:
    case OptimizerRule::kAdam: {
      const bool decoupled = options.rule == OptimizerRule::kAdamW;
      if (!decoupled) g = g + decay * x.w;
      x.m = c.beta1 * x.m + c.one_minus_beta1 * g;
      x.v = c.beta2 * x.v + c.one_minus_beta2 * (g * g);
      if (decoupled) x.w = x.w - (lr * decay) * x.w;
      x.w = x.w - (lr / c.bias_correction1) * (x.m / (std::sqrt(x.v) * c.root_scale + c.epsilon));
      return;
    }
    case OptimizerRule::kSgd: {
      const auto momentum = static_cast<float>(options.momentum);
      g = g + decay * x.w;
      float u = g;
      if (options.momentum != 0) {
        x.m = momentum * x.m + g;
        u = options.nesterov ? g + momentum * x.m : x.m;
      }
      x.w = x.w - lr * u;
      return;
    }
    default: {
      const float a = c.beta1 * x.m + c.one_minus_beta1 * g;
      const float u = a > 0 ? 1.0f : a < 0 ? -1.0f : a;
      x.w = x.w - (lr * decay) * x.w;
      x.w = x.w - lr * u;
      x.m = c.beta2 * x.m + c.one_minus_beta2 * g;
      return;
    }
  }
}

struct RuleOracle {
  double m = 0, v = 0, w = 0;

  void step(const OptimizerOptions& options, const UpdateScalars& at, double decay, double grad) {
    const double lr = static_cast<double>(at.lr);
    const double g = grad * static_cast<double>(at.grad_scale);
    switch (options.rule) {
      case OptimizerRule::kAdamW:
        w *= 1 - lr * decay;
        return adaptive(options, at.step, lr, g);
      case OptimizerRule::kAdam:
        return adaptive(options, at.step, lr, g + decay * w);
      case OptimizerRule::kSgd: {
        const double total = g + decay * w;
        m = options.momentum * m + total;
        w -= lr * (options.nesterov ? total + options.momentum * m : m);
        return;
      }
      default: {
        const double direction = options.beta1 * m + (1 - options.beta1) * g;
        w = w * (1 - lr * decay) - lr * (direction > 0 ? 1.0 : direction < 0 ? -1.0 : 0.0);
        m = options.beta2 * m + (1 - options.beta2) * g;
        return;
      }
    }
  }

 private:
  void adaptive(const OptimizerOptions& options, std::int64_t step, double lr, double g) {
    m += (1 - options.beta1) * (g - m);
    v += (1 - options.beta2) * (g * g - v);
    const auto steps = static_cast<double>(step);
    const double mean = m / (1 - std::pow(options.beta1, steps));
    const double variance = v / (1 - std::pow(options.beta2, steps));
    w -= lr * mean / (std::sqrt(variance) + options.epsilon);
  }
};

}  // namespace sluice::kernels::host
