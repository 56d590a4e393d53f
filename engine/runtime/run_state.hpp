// The state of one pass through a program: issued instructions, finished ones, the first failure.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "base/mutex.hpp"
#include "device/device.hpp"
#include "engine/runtime/program.hpp"
#include "engine/runtime/run_trace.hpp"

namespace sluice::runtime {

// Thrown inside a lane when another lane has failed; never leaves the executor.
struct RunAborted {};

enum class Progress : std::uint8_t { kWaiting, kIssued, kDone };

// Events that passes record anew: no pass after the first creates any. Not thread-safe: a pass
// takes its events when it begins.
class EventPool {
 public:
  explicit EventPool(device::Device& device) : device_(device) {}
  // As many as the program's passes will take, traced or not.
  void reserve(const Program& program);
  // The at-th event.
  device::Event& at(std::size_t at);

 private:
  device::Device& device_;
  std::vector<std::unique_ptr<device::Event>> events_;
};

// The lanes of a pass wait for each other here. Thread-safe.
class RunProgress {
 public:
  RunProgress(const Program& program, EventPool& events, bool timed, Deadline deadline);

  const Program& program() const { return program_; }
  Deadline deadline() const { return deadline_; }
  // Compute instructions always (the stalls of a step); all device lanes when a trace is wanted.
  bool is_timed(const schedule::Instruction& instruction) const {
    return instruction.op != schedule::Op::kRelease && is_device_lane(instruction.lane) &&
           (timed_ || instruction.lane == schedule::Lane::kCompute);
  }

  // Wakes only the lanes that wait for this instruction: a step has tens of thousands, and waking
  // every other lane for each would cost more than the lanes' own work.
  void set(schedule::InstructionId id, Progress progress) SLUICE_EXCLUDES(mutex_);

  // Blocks until the instruction is at least issued (device lanes) or done (others). Throws
  // RunAborted when the pass failed, TimeoutError past the deadline.
  void await(schedule::InstructionId id, Progress at_least, const schedule::Instruction& waiter)
      SLUICE_EXCLUDES(mutex_);
  bool reached(schedule::InstructionId id, Progress at_least) const {
    return progress_[id].load() >= at_least;
  }
  // Blocks until predicate() holds; looks at it when wake() or fail() is called.
  template <typename Predicate>
  void await_until(Predicate predicate, const std::string& what) SLUICE_EXCLUDES(mutex_);

  // Waits after the pass has failed; gives up at the deadline.
  template <typename Predicate>
  void await_after_failure(Predicate predicate) SLUICE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    changed_.wait_until(lock, deadline_, predicate);
  }

  // Lets await_until look again: something that its predicate reads has changed.
  void wake() SLUICE_EXCLUDES(mutex_);
  // Keeps the first failure and wakes every lane.
  void fail(std::exception_ptr error) SLUICE_EXCLUDES(mutex_);
  bool failed() const { return failed_.load(); }
  std::exception_ptr error() const SLUICE_EXCLUDES(mutex_);

  // The end of a device-lane instruction, if another lane awaits it or it is timed.
  device::Event& end_event(schedule::InstructionId id) { return *end_events_[id]; }
  bool has_end_event(schedule::InstructionId id) const { return end_events_[id] != nullptr; }
  device::Event& begin_event(schedule::InstructionId id) { return *begin_events_[id]; }

 private:
  const Program& program_;
  bool timed_;
  Deadline deadline_;
  std::vector<std::atomic<Progress>> progress_;
  std::vector<device::Event*> begin_events_;  // null: none
  std::vector<device::Event*> end_events_;
  // A lane that waits in await().
  struct Waiter {
    schedule::InstructionId id;
    CondVar reached;
  };

  std::atomic<bool> failed_{false};
  mutable Mutex mutex_;
  // Each lies on its own thread's stack.
  std::vector<Waiter*> waiters_ SLUICE_GUARDED_BY(mutex_);
  CondVar changed_;
  std::exception_ptr error_ SLUICE_GUARDED_BY(mutex_);
};

// A pass and its trace. Shared: a completion that comes after a deadline must still find it.
struct Pass : RunProgress, std::enable_shared_from_this<Pass> {
  Pass(const Program& program, EventPool& events, TraceRecorder* recorder, std::uint32_t step,
       Deadline deadline)
      : RunProgress(program, events, recorder != nullptr, deadline),
        trace(program.schedule(), recorder, step) {}
  RunTrace trace;
};

// "upload of unit 3 on lane h2d", for messages.
std::string describe(const schedule::Instruction& instruction);

template <typename Predicate>
void RunProgress::await_until(Predicate predicate, const std::string& what) {
  MutexLock lock(mutex_);
  const bool in_time =
      changed_.wait_until(lock, deadline_, [&] { return failed_.load() || predicate(); });
  if (failed_.load()) throw RunAborted{};
  if (!in_time) throw TimeoutError(what);
}

}  // namespace sluice::runtime
