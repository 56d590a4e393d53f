// The learning rate of each step: linear warmup, then cosine or constant.
//
// step s counts finished steps (the first update is s = 0); W warmup steps, S steps in all.
//   s < W              peak * (s + 1) / W             (the last warmup step has the peak)
//   constant           peak
//   cosine             final + (peak - final) * (1 + cos(pi * p)) / 2,  final = 0.1 * peak,
//                      p = (s - W) / max(1, S - 1 - W), at most 1: the last step has the final rate
// Computed in double and rounded once to fp32.
#pragma once

#include <cstdint>

namespace sluice::train {

class LrSchedule {
 public:
  enum class Shape : std::uint8_t { kCosine, kConstant };
  // The cosine ends with this part of the peak.
  static constexpr double kFinalFraction = 0.1;

  LrSchedule(Shape shape, double peak, std::int64_t warmup_steps, std::int64_t total_steps)
      : shape_(shape), peak_(peak), warmup_steps_(warmup_steps), total_steps_(total_steps) {}

  // step >= 0; beyond the last step the cosine stays at its final rate.
  float lr_at(std::int64_t step) const;

 private:
  Shape shape_;
  double peak_;
  std::int64_t warmup_steps_;
  std::int64_t total_steps_;
};

}  // namespace sluice::train
