#include "kernels/host/node_arena.hpp"

#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "base/log.hpp"
#include "base/thread_affinity.hpp"

namespace sluice::host {
namespace {

// What this thread had before it entered the arena that it is in.
std::optional<ThreadAffinity>& affinity_before() {
  thread_local std::optional<ThreadAffinity> before;
  return before;
}

}  // namespace

NodeArena::Binder::Binder(tbb::task_arena& arena, std::shared_ptr<const NumaMachine> machine,
                          std::size_t node, std::shared_ptr<std::atomic<bool>> warned)
    : tbb::task_scheduler_observer(arena),
      machine_(std::move(machine)),
      node_(node),
      warned_(std::move(warned)) {
  observe(true);
}

void NodeArena::Binder::on_scheduler_entry(bool) {
  std::optional<ThreadAffinity>& before = affinity_before();
  if (before) return;  // a thread that enters from within an arena keeps what it had outside
  before.emplace();
  const int refused = before->known() ? machine_->bind_this_thread(node_) : E2BIG;
  if (refused == 0) return;
  before.reset();
  if (warned_->exchange(true)) return;
  log(LogLevel::kWarning, "threads cannot be bound to NUMA node " +
                              std::to_string(machine_->nodes()[node_].os_index) + " (" +
                              std::strerror(refused) + "): they run where the system puts them");
}

void NodeArena::Binder::on_scheduler_exit(bool) {
  std::optional<ThreadAffinity>& before = affinity_before();
  if (!before) return;
  before->restore();
  before.reset();
}

NodeArena::NodeArena(int threads, bool for_caller, std::shared_ptr<const NumaMachine> machine,
                     std::size_t node, std::shared_ptr<std::atomic<bool>> warned)
    : arena_(threads, for_caller ? 1 : 0) {
  if (machine == nullptr) return;
  arena_.initialize();
  binder_ = std::make_unique<Binder>(arena_, std::move(machine), node, std::move(warned));
}

}  // namespace sluice::host
