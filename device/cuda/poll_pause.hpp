// The pause between two polls of the GPU. There is none at first, since a step's waits often end
// within microseconds; then come sleeps that grow to a tenth of a millisecond. Linux would make
// each sleep up to 50 us longer, to wake several threads at once (timer slack); this object turns
// that off while it lives.
#pragma once

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace sluice::device {

class PollPause {
 public:
  PollPause() = default;
  PollPause(const PollPause&) = delete;
  PollPause& operator=(const PollPause&) = delete;
  ~PollPause() {
    if (slack_ns_ > 0) ::prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(slack_ns_), 0, 0, 0);
  }

  void pause() {
    if (looks_ < kEagerLooks) {
      ++looks_;
      std::this_thread::yield();
      return;
    }
    if (slack_ns_ == 0) {
      slack_ns_ = ::prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
      ::prctl(PR_SET_TIMERSLACK, 1UL, 0, 0, 0);
    }
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(2 * sleep_, kLongestSleep);
  }

 private:
  static constexpr int kEagerLooks = 64;
  static constexpr std::chrono::microseconds kLongestSleep{100};
  int looks_ = 0;
  int slack_ns_ = 0;  // the thread's timer slack before the first sleep; 0: no sleep yet
  std::chrono::microseconds sleep_{5};
};

}  // namespace sluice::device
