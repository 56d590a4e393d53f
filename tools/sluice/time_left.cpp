#include "tools/sluice/time_left.hpp"

#include <algorithm>

namespace sluice::cli {

void TimeLeft::add_step(double seconds) {
  if (recent_.size() < kRecentSteps) {
    recent_.push_back(seconds);
  } else {
    recent_[next_] = seconds;
    next_ = (next_ + 1) % kRecentSteps;
  }
}

double TimeLeft::seconds_for(std::int64_t steps) const {
  if (recent_.empty()) return 0;
  std::vector<double> sorted = recent_;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>((sorted.size() - 1) / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle * static_cast<double>(steps);
}

}  // namespace sluice::cli
