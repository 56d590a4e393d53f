// The loss scale of fp16 training (Micikevicius et al. 2018, "Mixed Precision Training", section
// 3.2): the loss is multiplied by a power of two, so that small gradients do not vanish in fp16,
// and each use of a gradient divides by it again.
//
// Dynamic: an overflow (a gradient that is infinite or not a number) skips the step and halves the
// scale; `window` good steps in a row double it. Static: it stays. A run whose steps overflow
// `patience` times in a row has diverged. Powers of two: scaling never rounds a number that neither
// overflows nor becomes subnormal. A value; no thread rule.
#pragma once

#include <cstdint>

namespace sluice::runtime {

// The part that a checkpoint keeps, so that a resumed run scales like the uninterrupted one.
struct LossScaleState {
  std::int64_t scale = 1;          // a power of two from 1 to kMaxLossScale
  std::int64_t good_steps = 0;     // since the scale last changed or a step was skipped
  std::int64_t overflows = 0;      // in a row, up to the newest step
  std::int64_t skipped_steps = 0;  // of the whole run: the optimizer counts the others

  bool operator==(const LossScaleState&) const = default;
};

struct LossScaleRule {
  bool dynamic = false;
  std::int64_t initial = 1;    // a power of two from 1 to kMaxLossScale
  std::int64_t window = 2000;  // good steps before the scale is doubled
  std::int64_t patience = 16;  // overflows in a row that end the run
};

class LossScaler {
 public:
  // 2^32: a scale can only bring back values within the 40 binades of fp16, subnormals included.

  explicit LossScaler(const LossScaleRule& rule) : rule_(rule) { state_.scale = rule.initial; }

  double scale() const { return static_cast<double>(state_.scale); }
  // Takes note of a step's outcome. The next step's scale() may be another one.
  void finish_step(bool overflow);
  // The run is to end: the last `patience` steps or more all overflowed.
  bool exhausted() const { return state_.overflows >= rule_.patience; }

  const LossScaleState& state() const { return state_; }
  void restore(const LossScaleState& state) { state_ = state; }

 private:
  LossScaleRule rule_;
  LossScaleState state_;
};

}  // namespace sluice::runtime
