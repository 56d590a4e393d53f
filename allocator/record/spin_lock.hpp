// A lock for sections of a few nanoseconds that are almost never contended.
#pragma once

#include <atomic>
#include <thread>

namespace sluice::record {

// BasicLockable. A waiter soon yields, because the holder may have been preempted.
class SpinLock {
 public:
  void lock() {
    for (int spins = 0; flag_.test_and_set(std::memory_order_acquire); ++spins) {
      if (spins >= 64) std::this_thread::yield();
    }
  }
  void unlock() { flag_.clear(std::memory_order_release); }

 private:
  std::atomic_flag flag_;
};

}  // namespace sluice::record
