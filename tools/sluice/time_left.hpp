// How long the rest of a run takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sluice::cli {

// Time left, from the median time between the ends of recent steps: a checkpoint, an evaluation or
// a slow first step among them does not move it.
class TimeLeft {
 public:
  // `seconds`: the time since the step before ended.
  void add_step(double seconds);
  // Seconds that `steps` more steps take; 0 before the first step.
  double seconds_for(std::int64_t steps) const;

 private:
  static constexpr std::size_t kRecentSteps = 32;
  std::vector<double> recent_;  // a ring
  std::size_t next_ = 0;
};

}  // namespace sluice::cli
