// A oneTBB arena whose threads run on the processing units of one NUMA node while they work in it.
//
// oneTBB's workers belong to the whole process and go from arena to arena, so each is bound as it
// enters and gets back what it had as it leaves; so does a caller. Where binding is refused (a
// container may) the first refusal is logged as a warning, and the threads work unbound: pages are
// then reached from farther away, nothing else changes.
#pragma once

#include <oneapi/tbb/task_arena.h>
#include <oneapi/tbb/task_scheduler_observer.h>

#include <atomic>
#include <cstddef>
#include <memory>

#include "base/numa.hpp"

namespace sluice::host {

class NodeArena {
 public:
  // threads: its slots, one of them kept for the calling thread where `for_caller`. machine: null
  // binds nobody. warned: shared by the arenas of one team.
  NodeArena(int threads, bool for_caller, std::shared_ptr<const NumaMachine> machine,
            std::size_t node, std::shared_ptr<std::atomic<bool>> warned);

  tbb::task_arena& tasks() { return arena_; }

 private:
  class Binder final : public tbb::task_scheduler_observer {
   public:
    Binder(tbb::task_arena& arena, std::shared_ptr<const NumaMachine> machine, std::size_t node,
           std::shared_ptr<std::atomic<bool>> warned);
    ~Binder() override { observe(false); }
    Binder(const Binder&) = delete;
    Binder& operator=(const Binder&) = delete;
    void on_scheduler_entry(bool worker) override;
    void on_scheduler_exit(bool worker) override;

   private:
    const std::shared_ptr<const NumaMachine> machine_;
    const std::size_t node_;
    const std::shared_ptr<std::atomic<bool>> warned_;
  };

  tbb::task_arena arena_;
  std::unique_ptr<Binder> binder_;
};

}  // namespace sluice::host
