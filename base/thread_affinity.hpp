// The processors that the calling thread may run on, to be put back after it was bound elsewhere.
#pragma once

#include <sched.h>

namespace sluice {

class ThreadAffinity {
 public:
  // Of the calling thread, now.
  ThreadAffinity() noexcept : known_(sched_getaffinity(0, sizeof cpus_, &cpus_) == 0) {}

  // False on machines with more processors than a cpu_set_t has bits (1,024): there nothing can be
  // put back, so nothing should be bound.
  bool known() const noexcept { return known_; }

  // On the thread that it was read on. A refusal leaves the thread as it is: it runs, perhaps on
  // fewer processors than it might.
  void restore() const noexcept {
    if (known_) static_cast<void>(sched_setaffinity(0, sizeof cpus_, &cpus_));
  }

 private:
  cpu_set_t cpus_;
  bool known_;
};

}  // namespace sluice
