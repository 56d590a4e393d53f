// Saves the processors that the calling thread may run on, to restore them after a binding.
#pragma once

#include <sched.h>

namespace sluice {

class ThreadAffinity {
 public:
  // Reads the affinity of the calling thread.
  ThreadAffinity() noexcept : known_(sched_getaffinity(0, sizeof cpus_, &cpus_) == 0) {}

  // False on machines with more processors than a cpu_set_t has bits (1,024). Nothing can be
  // restored there, so nothing should be bound.
  bool known() const noexcept { return known_; }

  // Call on the thread that was read. If the kernel refuses, the thread keeps its binding and may
  // run on fewer processors than before.
  void restore() const noexcept {
    if (known_) static_cast<void>(sched_setaffinity(0, sizeof cpus_, &cpus_));
  }

 private:
  cpu_set_t cpus_;
  bool known_;
};

}  // namespace sluice
