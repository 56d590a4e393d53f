// The state of one pass through a program: what is issued, what is done, and the first failure.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "device/device.hpp"
#include "engine/runtime/program.hpp"

namespace sluice::runtime {

// Thrown inside a lane when another lane has failed; never leaves the executor.
struct RunAborted {};

constexpr bool is_device_lane(schedule::Lane lane) {
  return lane == schedule::Lane::kCompute || lane == schedule::Lane::kH2D || lane == schedule::Lane::kD2H;
}

enum class Progress : std::uint8_t { kWaiting, kIssued, kDone };

// Events that one run after another records anew: no run after the first creates any. Not
// thread-safe; a run hands out its events when it begins.
class EventPool {
 public:
  explicit EventPool(device::Device& device) : device_(device) {}
  // As many as the program's runs will take, traced or not.
  void reserve(const Program& program);
  // The at-th event.
  device::Event& at(std::size_t at);

 private:
  device::Device& device_;
  std::vector<std::unique_ptr<device::Event>> events_;
};

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

  // Wakes those alone that wait for this instruction: a step has tens of thousands, and every other
  // lane woken for each would cost more than the lanes' own work.
  void set(schedule::InstructionId id, Progress progress);

  // Blocks until the instruction is at least issued (device lanes) or done (others). Throws
  // RunAborted when the run failed, TimeoutError past the deadline.
  void await(schedule::InstructionId id, Progress at_least, const schedule::Instruction& waiter);
  bool reached(schedule::InstructionId id, Progress at_least) const {
    return progress_[id].load() >= at_least;
  }
  // Blocks until predicate() holds; looks at it when wake() or fail() is called.
  template <typename Predicate>
  void await_until(Predicate predicate, const std::string& what);

  // The same where the run has failed already; gives up at the deadline.
  template <typename Predicate>
  void await_after_failure(Predicate predicate) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline_.time(), predicate);
  }

  // Lets await_until look again: something that its predicate reads has changed.
  void wake();
  // Keeps the first failure and wakes everybody.
  void fail(std::exception_ptr error);
  bool failed() const { return failed_.load(); }
  std::exception_ptr error() const;

  // Of a device-lane instruction that is awaited by another lane, or timed.
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
    std::condition_variable reached;
  };

  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  std::vector<Waiter*> waiters_;  // guarded by mutex_; each on its own thread's stack
  std::condition_variable changed_;
  std::exception_ptr error_;  // guarded by mutex_
};

// "upload of unit 3 on lane h2d", for messages.
std::string describe(const schedule::Instruction& instruction);

template <typename Predicate>
void RunProgress::await_until(Predicate predicate, const std::string& what) {
  std::unique_lock lock(mutex_);
  const bool in_time =
      changed_.wait_until(lock, deadline_.time(), [&] { return failed_.load() || predicate(); });
  if (failed_.load()) throw RunAborted{};
  if (!in_time) throw TimeoutError(what);
}

}  // namespace sluice::runtime
