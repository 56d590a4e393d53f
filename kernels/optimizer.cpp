#include "kernels/optimizer.hpp"

#include <algorithm>
#include <cmath>

namespace sluice::kernels {

AdamConstants adam_constants(const OptimizerOptions& options, std::int64_t step) {
  const auto steps = static_cast<double>(step);
  AdamConstants constants;
  constants.beta1 = static_cast<float>(options.beta1);
  constants.one_minus_beta1 = static_cast<float>(1.0 - options.beta1);
  constants.beta2 = static_cast<float>(options.beta2);
  constants.one_minus_beta2 = static_cast<float>(1.0 - options.beta2);
  constants.epsilon = static_cast<float>(options.epsilon);
  constants.bias_correction1 = static_cast<float>(1.0 - std::pow(options.beta1, steps));
  constants.root_scale = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(options.beta2, steps)));
  return constants;
}

// A Newton-Schulz step of X [n, m], n <= m, has X X^T and its square, each half computed, and a
// product with X.
double update_product_flops(const OptimizerOptions& options,
                            std::span<const ParameterSegment> segments) {
  if (options.rule != OptimizerRule::kMuon) return 0;
  double flops = 0;
  for (const ParameterSegment& segment : segments) {
    if (!segment.tensor.hidden_matrix) continue;
    const auto n = static_cast<double>(std::min(segment.tensor.rows, segment.tensor.cols));
    const auto m = static_cast<double>(std::max(segment.tensor.rows, segment.tensor.cols));
    flops += options.newton_schulz_steps * (n * n * m + n * n * n + 2 * n * n * m);
  }
  return flops;
}

}  // namespace sluice::kernels
