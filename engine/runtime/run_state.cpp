#include "engine/runtime/run_state.hpp"

namespace sluice::runtime {

std::string describe(const schedule::Instruction& instruction) {
  std::string text(schedule::op_name(instruction.op));
  if (instruction.unit >= 0) text += " of unit " + std::to_string(instruction.unit);
  if (instruction.microbatch >= 0) {
    text += ", micro-batch " + std::to_string(instruction.microbatch);
  }
  return text + ", on lane " + std::string(schedule::lane_name(instruction.lane));
}

device::Event& EventPool::at(std::size_t at) {
  while (events_.size() <= at) events_.push_back(device_.create_event());
  return *events_[at];
}

void EventPool::reserve(const Program& program) {
  std::size_t most = 0;
  for (const schedule::Instruction& instruction : program.schedule().instructions) {
    if (is_device_lane(instruction.lane)) most += 2;
  }
  if (most > 0) at(most - 1);
}

RunProgress::RunProgress(const Program& program, EventPool& events, bool timed, Deadline deadline)
    : program_(program),
      timed_(timed),
      deadline_(deadline),
      progress_(program.schedule().instructions.size()) {
  begin_events_.resize(progress_.size());
  end_events_.resize(progress_.size());
  std::size_t taken = 0;
  for (const schedule::Instruction& instruction : program.schedule().instructions) {
    if (!is_device_lane(instruction.lane)) continue;
    const bool span = is_timed(instruction);
    if (span) begin_events_[instruction.id] = &events.at(taken++);
    if (span || program.awaited(instruction.id)) {
      end_events_[instruction.id] = &events.at(taken++);
    }
  }
}

void RunProgress::set(schedule::InstructionId id, Progress progress) {
  if (!program_.awaited(id)) {
    progress_[id].store(progress);
    return;  // no lane waits for it by name
  }
  // Notified under the lock: a waiter that has left await() takes its condition with it.
  const MutexLock lock(mutex_);
  progress_[id].store(progress);
  for (Waiter* waiter : waiters_) {
    if (waiter->id == id) waiter->reached.notify_one();
  }
}

void RunProgress::wake() {
  // Taking the lock ensures that a waiter has not yet read the predicate, or already sleeps.
  { const MutexLock lock(mutex_); }
  changed_.notify_all();
}

void RunProgress::await(schedule::InstructionId id, Progress at_least,
                        const schedule::Instruction& waiter) {
  if (reached(id, at_least)) return;
  const auto ended = [&] { return failed_.load() || this->reached(id, at_least); };
  Waiter here{id, {}};
  MutexLock lock(mutex_);
  waiters_.push_back(&here);
  const bool in_time = here.reached.wait_until(lock, deadline_, ended);
  std::erase(waiters_, &here);
  if (failed_.load()) throw RunAborted{};
  if (in_time) return;
  lock.unlock();
  const schedule::Instruction& awaited = program_.schedule().instructions[id];
  throw TimeoutError(describe(awaited) + ", awaited by " + describe(waiter));
}

void RunProgress::fail(std::exception_ptr error) {
  {
    const MutexLock lock(mutex_);
    if (!error_) error_ = error;
    failed_.store(true);
    for (Waiter* waiter : waiters_) waiter->reached.notify_one();
  }
  changed_.notify_all();
}

std::exception_ptr RunProgress::error() const {
  const MutexLock lock(mutex_);
  return error_;
}

}  // namespace sluice::runtime
