// Runs a Program: one thread per lane, in lane order, across lanes as `deps` say.
//
// Lanes compute, h2d, d2h, comm, inner, send and receive are streams of the device: their threads
// only queue, and order among themselves by events. The optimizer lane works on its own thread. The
// storage lanes submit to the storage engine and keep several transfers in flight; their
// completions are published in lane order. A failure anywhere stops every lane; run() returns only
// when all queues are empty, and then throws the failure.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/trace.hpp"
#include "device/device.hpp"
#include "engine/runtime/durable_state.hpp"
#include "engine/runtime/lane_threads.hpp"
#include "engine/runtime/program.hpp"
#include "engine/runtime/run_state.hpp"
#include "engine/runtime/stall_causes.hpp"
#include "engine/runtime/storage_lane.hpp"
#include "engine/runtime/update_tags.hpp"
#include "kernels/optimizer.hpp"

namespace sluice::runtime {

// Does the work of instructions that are not movement: the model's passes, the optimizer.
class OperationRunner {
 public:
  virtual ~OperationRunner() = default;
  // Queues the instruction's work on `stream` (compute and the lanes of messages).
  virtual void run_on_device(const Program& program, const schedule::Instruction& instruction,
                             device::Stream& stream) = 0;
  // Does it before returning (optimizer lane). how: of an update.
  virtual void run_on_host(const Program& program, const schedule::Instruction& instruction,
                           const kernels::HostUpdate& how) = 0;
  // kExternal: starts the host framework's compute; any thread calls `signal` when it is done.
  virtual void run_external(const Program& program, const schedule::Instruction& instruction,
                            const std::function<void(std::exception_ptr)>& signal);
  // The pass has failed on this rank: a collective that waits for other ranks must end. Any thread.
  virtual void abort_collectives(const std::string& why) noexcept;
};

struct RunStatistics {
  double seconds = 0;
  double compute_stalled_seconds = 0;  // time in which the compute lane had no work
  std::optional<Stalls> stalls;        // its causes; traced runs only
};

// Runs programs of one device and one storage space. Not thread-safe: one run at a time.
class Executor {
 public:
  // Starts the lanes' threads; throws ThreadError with none left running. durable: of a durable
  // run, else null.
  Executor(device::Device& device, offload::TaggedSpace& storage, OperationRunner& runner,
           double deadline_seconds = kDefaultDeadlineSeconds, DurableState* durable = nullptr);
  ~Executor();

  // The stream on which the lane comm queues, for a group of GPUs.
  device::Stream& comm_stream() { return *streams_.comm; }

  // Creates the events that the program's runs will use; otherwise its first run does.
  void prepare(const Program& program);
  // Runs once through. trace: null, or the recorder that gets a span per instruction.
  // Throws the first failure; TimeoutError names the instruction that was waited for.
  RunStatistics run(const Program& program, TraceRecorder* trace = nullptr, std::uint32_t step = 0);

 private:
  void run_lane(Pass& pass, schedule::Lane lane);
  void end_collectives(Pass& pass) noexcept;
  void run_device_lane(Pass& pass, schedule::Lane lane, device::Stream& stream);
  void run_optimizer_lane(Pass& pass);
  void issue(Pass& pass, const schedule::Instruction& instruction, device::Stream& stream);
  UpdateTags update_tags(const Program& program, const schedule::Instruction& update);
  // After the pass: traces the device lanes, and returns for how many seconds compute was busy.
  double read_events(Pass& pass);

  device::Device& device_;
  offload::TaggedSpace& storage_;
  OperationRunner& runner_;
  double deadline_seconds_;
  DurableState* durable_;
  EventPool events_;
  struct Streams {
    explicit Streams(device::Device& device);
    std::unique_ptr<device::Stream> compute, h2d, d2h, comm, inner, send, receive;
  };
  Streams streams_;
  StorageLane storage_read_;
  StorageLane storage_write_;
  LaneThreads lanes_;  // last: its threads use all of the above
};

}  // namespace sluice::runtime
