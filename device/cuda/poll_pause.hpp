// The pause between two looks at something that the GPU does: none at first, since what a step
// waits for often passes within microseconds, then sleeps that grow to a tenth of a millisecond.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace sluice {

class PollPause {
 public:
  void pause() {
    if (looks_ < kEagerLooks) {
      ++looks_;
      std::this_thread::yield();
      return;
    }
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(2 * sleep_, kLongestSleep);
  }

 private:
  static constexpr int kEagerLooks = 64;
  static constexpr std::chrono::microseconds kLongestSleep{100};
  int looks_ = 0;
  std::chrono::microseconds sleep_{5};
};

}  // namespace sluice
