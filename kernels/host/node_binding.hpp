// While one lives, this thread runs on the processing units of one NUMA node; then where it ran
// before. oneTBB's workers belong to the whole process and go from arena to arena, so none stays
// bound behind its work.
//
// Where binding is refused (a container may) the first refusal is logged as a warning and the
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
  // machine: null binds nothing. warned: shared by those of one team.
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
