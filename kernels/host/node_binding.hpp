// RAII: binds this thread to the processing units of one NUMA node, and restores its affinity
// afterwards. oneTBB's workers belong to the whole process and move between arenas, so no worker
// stays bound after its work.
//
// If binding is refused (as in some containers), the first refusal is logged as a warning and the
// thread works unbound. Some memory accesses are then remote; nothing else changes.
// thread works unbound: pages are then reached from farther away, nothing else changes.
#pragma once

#include <atomic>
#include <cstddef>
#include <optional>

#include "base/numa.hpp"
#include "base/thread_affinity.hpp"

namespace sluice::kernels::host {

class NodeBinding {
 public:
  // machine: null binds nothing. warned: shared by the bindings of one team.
  NodeBinding(const NumaMachine* machine, std::size_t node, std::atomic<bool>& warned);
  ~NodeBinding() {
    if (before_) before_->restore();
  }
  NodeBinding(const NodeBinding&) = delete;
  NodeBinding& operator=(const NodeBinding&) = delete;

 private:
  std::optional<ThreadAffinity> before_;  // none: not bound
};

}  // namespace sluice::kernels::host
