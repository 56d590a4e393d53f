#include "engine/train/lr_schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace sluice::train {

float LrSchedule::lr_at(std::int64_t step) const {
  if (step < warmup_steps_) {
    return static_cast<float>(peak_ * static_cast<double>(step + 1) /
                              static_cast<double>(warmup_steps_));
  }
  if (shape_ == Shape::kConstant) return static_cast<float>(peak_);
  const std::int64_t span = std::max<std::int64_t>(1, total_steps_ - 1 - warmup_steps_);
  const double progress =
      std::min(1.0, static_cast<double>(step - warmup_steps_) / static_cast<double>(span));
  const double final_lr = kFinalFraction * peak_;
  return static_cast<float>(final_lr + (peak_ - final_lr) *
                                           (1.0 + std::cos(std::numbers::pi * progress)) / 2.0);
}

}  // namespace sluice::train
