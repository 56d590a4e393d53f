// Runs a Program: one thread per lane, in lane order, across lanes as `deps` say.
//
// Lanes compute, h2d and d2h are streams of the device: their threads only queue, and order among
// themselves by events. The optimizer lane works on its own thread. The storage lanes submit to the
// storage engine and keep several transfers in flight; their completions are published in lane
// order. A failure anywhere stops every lane; run() returns only when all queues are empty, then
// throws it.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/trace.hpp"
#include "device/device.hpp"
#include "engine/runtime/durable_state.hpp"
#include "engine/runtime/program.hpp"
#include "engine/runtime/stall_causes.hpp"
#include "engine/runtime/update_tags.hpp"

namespace sluice::runtime {

// Does the work of instructions that are not movement: the model's passes, the optimizer.
class OperationRunner {
 public:
  virtual ~OperationRunner() = default;
  // Queues the instruction's work on `stream` (compute lane).
  virtual void run_on_device(const Program& program, const schedule::Instruction& instruction,
                             device::Stream& stream) = 0;
  // Does it before returning (optimizer lane). how: of an update.
  virtual void run_on_host(const Program& program, const schedule::Instruction& instruction,
                           const kernels::HostUpdate& how) = 0;
  // kExternal: starts somebody else's compute; `signal` is called, from any thread, when it is
  // done.
  virtual void run_external(const Program& program, const schedule::Instruction& instruction,
                            const std::function<void(std::exception_ptr)>& signal);
};

struct RunStatistics {
  double seconds = 0;
  double compute_stalled_seconds = 0;  // in which the compute lane had nothing to do
  std::optional<Stalls> stalls;        // of a traced run: why
};

class EventPool;

class Executor {
 public:
  // durable: of a durable run, else null.
  Executor(device::Device& device, offload::TaggedSpace& storage, OperationRunner& runner,
           double deadline_seconds = kDefaultDeadlineSeconds, DurableState* durable = nullptr);
  ~Executor();

  // Creates the events that the program's runs will use; else its first run does.
  void prepare(const Program& program);
  // Runs once through. trace: null, or the recorder that gets a span per instruction.
  // Throws the first failure; TimeoutError names the instruction that was waited for.
  RunStatistics run(const Program& program, TraceRecorder* trace = nullptr, std::uint32_t step = 0);

 private:
  struct LaneState;
  struct RunState;
  void lane_loop(std::size_t lane);
  void run_lane(RunState& run, std::size_t lane);
  void run_device_lane(RunState& run, std::size_t lane);
  void run_optimizer_lane(RunState& run);
  void run_storage_lane(RunState& run, std::size_t lane);
  offload::TaggedSpace::RangeId storage_range(const Program& program, const schedule::Instruction& instruction,
                                     const Place& place) const;
  UpdateTags update_tags(const Program& program, const schedule::Instruction& update);
  void commit(RunState& run, const schedule::Instruction& instruction);
  void issue(RunState& run, const schedule::Instruction& instruction, device::Stream& stream);
  bool wait_on_host(RunState& run, const schedule::Instruction& instruction);
  void check_host_access(RunState& run, const schedule::Instruction& instruction);
  void record_memory(RunState& run);
  void record_span(RunState& run, const schedule::Instruction& instruction, std::int64_t begin_ns,
                   std::int64_t end_ns);

  device::Device& device_;
  offload::TaggedSpace& storage_;
  OperationRunner& runner_;
  double deadline_seconds_;
  DurableState* durable_;
  std::unique_ptr<EventPool> events_;
  std::array<std::unique_ptr<device::Stream>, 3> streams_;  // compute, h2d, d2h
  std::vector<std::unique_ptr<LaneState>> lanes_;
  std::mutex mutex_;
  std::condition_variable run_changed_;
  RunState* current_ = nullptr;    // guarded by mutex_
  std::uint64_t generation_ = 0;   // guarded by mutex_
  std::size_t lanes_running_ = 0;  // guarded by mutex_
  bool stopping_ = false;          // guarded by mutex_
  std::vector<std::jthread> threads_;
};

}  // namespace sluice::runtime
