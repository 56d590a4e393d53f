#include "engine/runtime/loss_scaler.hpp"

#include <algorithm>

#include "base/dtype.hpp"

namespace sluice::runtime {

void LossScaler::finish_step(bool overflow) {
  if (overflow) {
    ++state_.overflows;
    ++state_.skipped_steps;
    state_.good_steps = 0;
    if (rule_.dynamic) state_.scale = std::max<std::int64_t>(1, state_.scale / 2);
    return;
  }
  state_.overflows = 0;
  if (!rule_.dynamic || ++state_.good_steps < rule_.window) return;
  state_.good_steps = 0;
  state_.scale = std::min(kMaxLossScale, 2 * state_.scale);
}

}  // namespace sluice::runtime
