// Locks that the compiler checks: Mutex, MutexLock and CondVar, and the annotations of data and
// functions that belong to a lock.
//
// The classes are thin wrappers of the standard ones; clang's -Wthread-safety does not know those.
// A member names its lock with SLUICE_GUARDED_BY(mutex_), and a function that expects the caller to
// hold it says SLUICE_REQUIRES(mutex_). tools/test makes a violation an error. Under other
// compilers the annotations vanish.
//
// A predicate for CondVar is a lambda that reads guarded data, so it carries the annotation too:
//   changed_.wait(lock, [&]() SLUICE_REQUIRES(mutex_) { return stopping_ || !queue_.empty(); });
#pragma once

#include <condition_variable>
#include <mutex>
#include <utility>

#include "base/deadline.hpp"

#if defined(__clang__)
#define SLUICE_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define SLUICE_THREAD_ATTRIBUTE(x)
#endif

// On a class: it is a lock, or it holds one from its constructor to its destructor.
#define SLUICE_CAPABILITY(name) SLUICE_THREAD_ATTRIBUTE(capability(name))
#define SLUICE_SCOPED_CAPABILITY SLUICE_THREAD_ATTRIBUTE(scoped_lockable)
// On data: only a thread that holds the lock may touch it. The second annotates the object
// behind a pointer.
#define SLUICE_GUARDED_BY(...) SLUICE_THREAD_ATTRIBUTE(guarded_by(__VA_ARGS__))
#define SLUICE_PT_GUARDED_BY(...) SLUICE_THREAD_ATTRIBUTE(pt_guarded_by(__VA_ARGS__))
// On functions: the caller holds the lock; the caller must not hold it; the function takes it, or
// gives it up.
#define SLUICE_REQUIRES(...) SLUICE_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define SLUICE_EXCLUDES(...) SLUICE_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define SLUICE_ACQUIRE(...) SLUICE_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define SLUICE_RELEASE(...) SLUICE_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define SLUICE_TRY_ACQUIRE(...) SLUICE_THREAD_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
// On a function that returns a reference to a lock.
#define SLUICE_RETURN_CAPABILITY(x) SLUICE_THREAD_ATTRIBUTE(lock_returned(x))
// Tells the compiler that the lock is held where it cannot see it: the comment next to it says why.
#define SLUICE_ASSERT_CAPABILITY(...) SLUICE_THREAD_ATTRIBUTE(assert_capability(__VA_ARGS__))
// Switches the check off for one function: the comment next to it says why.
#define SLUICE_NO_THREAD_SAFETY_ANALYSIS SLUICE_THREAD_ATTRIBUTE(no_thread_safety_analysis)

namespace sluice {

// Not recursive. Prefer MutexLock to calling lock() and unlock().
class SLUICE_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() SLUICE_ACQUIRE() { inner_.lock(); }
  void unlock() SLUICE_RELEASE() { inner_.unlock(); }
  bool try_lock() SLUICE_TRY_ACQUIRE(true) { return inner_.try_lock(); }
  // For code that holds the lock in a way that the compiler cannot follow. Does nothing.
  void assert_held() const SLUICE_ASSERT_CAPABILITY(this) {}

 private:
  friend class MutexLock;
  std::mutex inner_;
};

// Holds a Mutex while it lives; unlock() and lock() allow a pause.
class SLUICE_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) SLUICE_ACQUIRE(mutex) : lock_(mutex.inner_) {}
  ~MutexLock() SLUICE_RELEASE() = default;
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void lock() SLUICE_ACQUIRE() { lock_.lock(); }
  void unlock() SLUICE_RELEASE() { lock_.unlock(); }

 private:
  friend class CondVar;
  std::unique_lock<std::mutex> lock_;
};

// A condition that threads wait for. The lock given to a wait is held before and after it, and
// released while the thread sleeps.
class CondVar {
 public:
  // Blocks until predicate() holds; it runs with the lock held.
  template <typename Predicate>
  void wait(MutexLock& lock, Predicate predicate) SLUICE_NO_THREAD_SAFETY_ANALYSIS {
    inner_.wait(lock.lock_, std::move(predicate));
  }
  // Waits until the deadline at most. Returns predicate()'s last value.
  template <typename Predicate>
  bool wait_until(MutexLock& lock, Deadline deadline,
                  Predicate predicate) SLUICE_NO_THREAD_SAFETY_ANALYSIS {
    return inner_.wait_until(lock.lock_, deadline.time(), std::move(predicate));
  }
  void notify_one() noexcept { inner_.notify_one(); }
  void notify_all() noexcept { inner_.notify_all(); }

 private:
  std::condition_variable inner_;
};

}  // namespace sluice
