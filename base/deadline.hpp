// A point in time by which a wait must end (law 6: no call blocks forever).
#pragma once

#include <chrono>
#include <cstdint>

namespace sluice {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  static Deadline after(std::chrono::nanoseconds duration) {
    return Deadline(Clock::now() + duration);
  }
  static Deadline after_seconds(double seconds) {
    return after(std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9)));
  }
  Clock::time_point time() const { return time_; }
  bool passed() const { return Clock::now() >= time_; }

 private:
  explicit Deadline(Clock::time_point time) : time_(time) {}
  Clock::time_point time_;
};

// The time that a single instruction of a step may take before the run is stopped as hung.
inline constexpr double kDefaultDeadlineSeconds = 600.0;

}  // namespace sluice
