// Makes the Nth start of a thread fail, as a container's limit of threads does.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <string>

#include "base/thread.hpp"

namespace sluice::testing {

// While one lives, it counts the starts of threads and fails the chosen one with EAGAIN. At most
// one at a time.
class FailThreadStart {
 public:
  // at: counted from 1; 0: none fails. forever: every later start fails too.
  explicit FailThreadStart(std::uint64_t at, bool forever = false) {
    at_ = at;
    forever_ = forever;
    count_ = 0;
    set_thread_start_hook([](const std::string&) {
      const std::uint64_t number = ++count_;
      return at_ != 0 && (number == at_ || (forever_ && number > at_)) ? EAGAIN : 0;
    });
  }
  ~FailThreadStart() { set_thread_start_hook(nullptr); }
  FailThreadStart(const FailThreadStart&) = delete;
  FailThreadStart& operator=(const FailThreadStart&) = delete;

  // Starts that were asked for.
  std::uint64_t count() const { return count_; }

 private:
  static inline std::atomic<std::uint64_t> at_ = 0;
  static inline std::atomic<bool> forever_ = false;
  static inline std::atomic<std::uint64_t> count_ = 0;
};

}  // namespace sluice::testing
