// A lock for sections of a few nanoseconds that are almost never contended.
#pragma once

#include <atomic>
#include <thread>

#include "base/mutex.hpp"

namespace sluice::record {

// A waiter soon yields, because the holder may have been preempted.
class SLUICE_CAPABILITY("mutex") SpinLock {
 public:
  void lock() SLUICE_ACQUIRE() {
    for (int spins = 0; flag_.test_and_set(std::memory_order_acquire); ++spins) {
      if (spins >= 64) std::this_thread::yield();
    }
  }
  void unlock() SLUICE_RELEASE() { flag_.clear(std::memory_order_release); }

 private:
  std::atomic_flag flag_;
};

// Holds a SpinLock while it lives.
class SLUICE_SCOPED_CAPABILITY SpinLockHolder {
 public:
  explicit SpinLockHolder(SpinLock& spin_lock) SLUICE_ACQUIRE(spin_lock) : lock_(spin_lock) {
    lock_.lock();
  }
  ~SpinLockHolder() SLUICE_RELEASE() { lock_.unlock(); }
  SpinLockHolder(const SpinLockHolder&) = delete;
  SpinLockHolder& operator=(const SpinLockHolder&) = delete;

 private:
  SpinLock& lock_;
};

}  // namespace sluice::record
