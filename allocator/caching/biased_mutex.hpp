// A mutex that costs the thread which nearly always takes it a few plain loads and stores, and no
// atomic read-modify-write; who else comes pays a system call.
//
// It is biased to the first thread that locks it. That thread says "held" and then looks whether
// the mutex is still its own; anyone else takes the inner mutex, withdraws the bias, and has
// membarrier(2) put a fence between the owner's two steps, so that one of them sees the other.
// lock() by another thread withdraws the bias for good: from then on this is an ordinary mutex.
// BiasedGuests give it back when they go: for who looks at many such mutexes now and then.
//
// Where the kernel has no membarrier (before Linux 4.14, or where it is forbidden) nothing is
// biased.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

namespace sluice::allocator {

// BasicLockable; not recursive.
class BiasedMutex {
 public:
  BiasedMutex() = default;
  BiasedMutex(const BiasedMutex&) = delete;
  BiasedMutex& operator=(const BiasedMutex&) = delete;

  void lock() {
    const void* const me = this_thread();
    if (bias_.load(std::memory_order_relaxed) == me && hold(me)) [[likely]]
      return;
    lock_slowly(me);
  }
  void unlock() {
    // The owner alone may take the mark for its own: others can see that of an attempt.
    if (owner_.load(std::memory_order_relaxed) == this_thread() &&
        held_.load(std::memory_order_relaxed)) [[likely]] {
      held_.store(false, std::memory_order_release);
    } else {
      unlock_slowly();
    }
  }

  // The caller, who holds it not, is the owner from now on. A former owner must have ended.
  void bias_to_this_thread();
  bool is_biased() const { return bias_.load(std::memory_order_relaxed) != nullptr; }

 private:
  friend class BiasedGuests;

  // An address of the thread's own: another's only when the thread has ended.
  static const void* this_thread() {
    static constinit thread_local char place = 0;
    return &place;
  }
  bool hold(const void* me) {
    // Acquire: who has the address of an owner that ended sees what that one did.
    static_cast<void>(held_.load(std::memory_order_acquire));
    held_.store(true, std::memory_order_relaxed);
    // Here the compiler keeps the order; the processor is made to by whoever withdraws the bias.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (bias_.load(std::memory_order_acquire) == me) return true;
    held_.store(false, std::memory_order_release);
    return false;
  }
  void lock_slowly(const void* me);
  void unlock_slowly();
  // With inner_ held: nobody may lock without it any more; true: a fence is still to be made, and
  // then to be waited until the owner is out.
  bool withdraw(const void* me, bool for_good);
  void wait_for_owner() const;

  std::atomic<const void*> bias_ = nullptr;   // who may lock without inner_; null: nobody
  std::atomic<const void*> owner_ = nullptr;  // who alone writes held_
  std::atomic<bool> held_ = false;
  std::mutex inner_;
  const void* lent_ = nullptr;  // guarded by inner_: the bias that unlock() gives back
};

// Holds mutexes, in their order, without taking their owners' bias away; one system call for all.
class BiasedGuests {
 public:
  explicit BiasedGuests(std::vector<BiasedMutex*> mutexes);
  ~BiasedGuests();
  BiasedGuests(const BiasedGuests&) = delete;
  BiasedGuests& operator=(const BiasedGuests&) = delete;

 private:
  std::vector<BiasedMutex*> mutexes_;
};

}  // namespace sluice::allocator
