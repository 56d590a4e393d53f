#include "engine/runtime/storage_lane.hpp"

#include <utility>

#include "base/error.hpp"
#include "engine/runtime/host_lane.hpp"

namespace sluice::runtime {

StorageLane::StorageLane(schedule::Lane lane, device::Device& device, offload::TaggedSpace& storage,
                         DurableState* durable, double deadline_seconds)
    : lane_(lane),
      device_(device),
      storage_(storage),
      durable_(durable),
      deadline_seconds_(deadline_seconds) {}

void StorageLane::run(Pass& pass) {
  {
    const MutexLock lock(mutex_);
    ended_.assign(pass.program().lane(lane_).size(), 0);
    published_count_ = 0;
  }
  std::exception_ptr error;
  try {
    submit_all(pass);
  } catch (...) {
    error = std::current_exception();
  }
  await_idle(pass);
  if (error) std::rethrow_exception(error);
}

void StorageLane::submit_all(Pass& pass) {
  const Program& program = pass.program();
  const std::vector<schedule::InstructionId>& list = program.lane(lane_);
  for (std::size_t at = 0; at < list.size(); ++at) {
    const schedule::Instruction& instruction = program.schedule().instructions[list[at]];
    await_dependencies(pass, instruction);
    for (const schedule::InstructionId earlier : program.storage_conflicts(instruction.id)) {
      pass.await(earlier, Progress::kDone, instruction);
    }
    if (pass.failed()) throw RunAborted{};
    if (instruction.op == schedule::Op::kRelease) {
      end(pass, at);
    } else if (instruction.op == schedule::Op::kCommit) {
      commit(pass, instruction);
      end(pass, at);
    } else {
      check_host_access(device_, program, instruction);
      submit(pass, instruction, at);
    }
  }
}

void StorageLane::commit(Pass& pass, const schedule::Instruction& instruction) {
  SLUICE_CHECK(durable_ != nullptr);
  const std::int64_t begin_ns = device_.now_ns();
  durable_->commit();
  if (pass.trace.wanted()) pass.trace.record_span(instruction, begin_ns, device_.now_ns());
}

void StorageLane::submit(Pass& pass, const schedule::Instruction& transfer, std::size_t at) {
  const Program& program = pass.program();
  const bool read = transfer.op == schedule::Op::kStorageRead;
  const Place& from = program.reads(transfer.id).front();
  const Place& to = program.writes(transfer.id).front();
  const Place& memory = read ? to : from;
  const Place& storage = read ? from : to;
  SLUICE_CHECK(memory.bytes == storage.bytes);
  {
    const MutexLock lock(mutex_);
    ++in_flight_count_;
  }
  // The callback shares the pass: run() may not return before it, but the pass's owner may.
  auto done = [this, shared = pass.shared_from_this(), &transfer, at,
               begin_ns = device_.now_ns()](std::exception_ptr error) {
    if (error) {
      shared->fail(std::move(error));
    } else {
      if (shared->trace.wanted()) {
        shared->trace.record_span(transfer, begin_ns, device_.now_ns());
      }
      end(*shared, at);
    }
    const MutexLock lock(mutex_);
    --in_flight_count_;
    drained_.notify_all();
  };
  try {
    storage_.submit(
        read ? offload::StorageOp::kRead : offload::StorageOp::kWrite,
        storage_range(program, transfer, storage, durable_), storage.range_offset, memory.data,
        memory.bytes, std::move(done), program.needed_by(transfer.id),
        program.tagged_in_update(transfer.id) ? offload::TagsBy::kCaller : offload::TagsBy::kSpace);
  } catch (...) {
    const MutexLock lock(mutex_);
    --in_flight_count_;  // nothing was submitted: there will be no callback
    throw;
  }
}

void StorageLane::end(Pass& pass, std::size_t at) {
  const std::vector<schedule::InstructionId>& list = pass.program().lane(lane_);
  const MutexLock lock(mutex_);
  ended_[at] = 1;
  while (published_count_ < list.size() && ended_[published_count_] != 0) {
    pass.set(list[published_count_++], Progress::kDone);
  }
}

void StorageLane::await_idle(Pass& pass) {
  MutexLock lock(mutex_);
  const auto idle = [this]() SLUICE_REQUIRES(mutex_) { return in_flight_count_ == 0; };
  if (drained_.wait_until(lock, Deadline::after_seconds(deadline_seconds_), idle)) return;
  pass.fail(
      std::make_exception_ptr(TimeoutError("storage transfers in flight at the end of a step")));
  // The kernel may still write this memory, and the callbacks still use this lane: waiting is the
  // only safe way on, as in the engine's destructor.
  drained_.wait(lock, idle);
}

}  // namespace sluice::runtime
