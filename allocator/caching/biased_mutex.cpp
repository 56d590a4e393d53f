#include "allocator/caching/biased_mutex.hpp"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

namespace sluice::allocator {
namespace {

bool call_membarrier(int command) {
  return ::syscall(SYS_membarrier, command, 0, 0) == 0;
}

bool can_fence_others() {
  static const bool registered = call_membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
  return registered;
}

// Every running thread of this process passes a full fence before this returns.
void fence_others() noexcept {
  if (call_membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) return;
  // A child of fork() may have to say again that it will.
  if (call_membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) &&
      call_membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) {
    return;
  }
  if (call_membarrier(MEMBARRIER_CMD_GLOBAL)) return;  // milliseconds, where the others are refused
  // A filter on system calls that was set since: who is inside cannot be known any more.
  std::fputs("sluice: membarrier(2), which this process could call before, is refused\n", stderr);
  std::abort();
}

}  // namespace

bool BiasedMutex::withdraw(const void* me, bool for_good) {
  const void* const bias = bias_.load(std::memory_order_relaxed);
  if (bias == nullptr || bias == me) return false;
  bias_.store(nullptr, std::memory_order_relaxed);
  lent_ = for_good ? nullptr : bias;
  return true;
}

void BiasedMutex::wait_for_owner() const {
  for (int i = 0; held_.load(std::memory_order_acquire); ++i) {
    if (i < 64) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
}

void BiasedMutex::lock_slowly(const void* me) {
  inner_.lock();
  if (owner_.load(std::memory_order_relaxed) == nullptr && can_fence_others()) {
    owner_.store(me, std::memory_order_relaxed);
    bias_.store(me, std::memory_order_relaxed);
    return;  // this time by inner_
  }
  if (!withdraw(me, true)) return;
  fence_others();
  wait_for_owner();
}

void BiasedMutex::unlock_slowly() {
  if (lent_ != nullptr) {
    bias_.store(std::exchange(lent_, nullptr), std::memory_order_release);
  }
  inner_.unlock();
}

void BiasedMutex::bias_to_this_thread() {
  if (!can_fence_others()) return;
  const void* const me = this_thread();
  const std::lock_guard lock(inner_);
  if (withdraw(me, true)) {
    fence_others();
    wait_for_owner();
  }
  owner_.store(me, std::memory_order_relaxed);
  bias_.store(me, std::memory_order_relaxed);
}

BiasedGuests::BiasedGuests(std::vector<BiasedMutex*> mutexes) : mutexes_(std::move(mutexes)) {
  const void* const me = BiasedMutex::this_thread();
  bool fence = false;
  for (BiasedMutex* mutex : mutexes_) {
    mutex->inner_.lock();
    if (mutex->withdraw(me, false)) fence = true;
  }
  if (!fence) return;
  fence_others();
  for (const BiasedMutex* mutex : mutexes_) {
    if (mutex->lent_ != nullptr) mutex->wait_for_owner();
  }
}

BiasedGuests::~BiasedGuests() {
  for (std::size_t i = mutexes_.size(); i-- > 0;) mutexes_[i]->unlock_slowly();
}

}  // namespace sluice::allocator
