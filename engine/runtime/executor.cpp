// How a pass runs: LaneThreads calls run_lane() for each lane at once; each walks its own list of
// instructions, waits for the dependencies that lie on other lanes (RunProgress), and publishes
// its progress. Device lanes only queue work, and let the device wait: a dependency on another
// device lane becomes a wait for an event. The pass ends when every lane has returned, which each
// does with its queue empty, so no memory is in use afterwards whatever failed.
#include "engine/runtime/executor.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "base/error.hpp"
#include "engine/runtime/host_lane.hpp"

namespace sluice::runtime {

void OperationRunner::run_external(const Program&, const schedule::Instruction& instruction,
                                   const std::function<void(std::exception_ptr)>&) {
  throw InternalError("no host framework is attached to run " + describe(instruction));
}

void OperationRunner::abort_collectives(const std::string&) noexcept {}

Executor::Streams::Streams(device::Device& device)
    : compute(device.create_stream("compute")),
      h2d(device.create_stream("h2d")),
      d2h(device.create_stream("d2h")),
      comm(device.create_stream("comm")),
      inner(device.create_stream("inner")),
      send(device.create_stream("send")),
      receive(device.create_stream("receive")) {}

Executor::Executor(device::Device& device, offload::TaggedSpace& storage, OperationRunner& runner,
                   double deadline_seconds, DurableState* durable)
    : device_(device),
      storage_(storage),
      runner_(runner),
      deadline_seconds_(deadline_seconds),
      durable_(durable),
      events_(device),
      streams_(device),
      storage_read_(schedule::Lane::kStorageRead, device, storage, durable, deadline_seconds),
      storage_write_(schedule::Lane::kStorageWrite, device, storage, durable, deadline_seconds) {}

Executor::~Executor() = default;

void Executor::prepare(const Program& program) {
  events_.reserve(program);
}

RunStatistics Executor::run(const Program& program, TraceRecorder* trace, std::uint32_t step) {
  const auto begin = std::chrono::steady_clock::now();
  const std::int64_t pass_begin_ns = device_.now_ns();
  const auto pass = std::make_shared<Pass>(program, events_, trace, step,
                                           Deadline::after_seconds(deadline_seconds_));
  // Every lane ends by itself: each of its waits has the pass's deadline.
  lanes_.run([&](schedule::Lane lane) {
    try {
      run_lane(*pass, lane);
    } catch (const RunAborted&) {
      // Another lane failed and kept the reason.
    } catch (...) {
      pass->fail(std::current_exception());
    }
    if (pass->failed()) end_collectives(*pass);
  });
  const std::int64_t pass_end_ns = device_.now_ns();
  if (pass->failed()) std::rethrow_exception(pass->error());
  RunStatistics statistics;
  statistics.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  statistics.compute_stalled_seconds = std::max(0.0, statistics.seconds - read_events(*pass));
  if (trace != nullptr) {
    pass->trace.record_memory();
    statistics.stalls =
        stalls_of_pass(program.schedule(), pass->trace.times(), pass_begin_ns, pass_end_ns);
  }
  return statistics;
}

// Ends the collectives that wait for other ranks, or they for this one, with the first failure.
void Executor::end_collectives(Pass& pass) noexcept {
  try {
    std::rethrow_exception(pass.error());
  } catch (const std::exception& first) {
    runner_.abort_collectives(first.what());
  } catch (...) {
    runner_.abort_collectives("the pass has failed");
  }
}

double Executor::read_events(Pass& pass) {
  double busy_seconds = 0;
  for (const schedule::Instruction& instruction : pass.program().schedule().instructions) {
    if (!pass.is_timed(instruction)) continue;
    const std::int64_t begin_ns = pass.begin_event(instruction.id).time_ns();
    const std::int64_t end_ns = pass.end_event(instruction.id).time_ns();
    if (instruction.lane == schedule::Lane::kCompute) {
      busy_seconds += static_cast<double>(end_ns - begin_ns) * 1e-9;
    }
    if (pass.trace.wanted()) pass.trace.record_span(instruction, begin_ns, end_ns);
  }
  return busy_seconds;
}

void Executor::run_lane(Pass& pass, schedule::Lane lane) {
  switch (lane) {
    case schedule::Lane::kCompute:
      return run_device_lane(pass, lane, *streams_.compute);
    case schedule::Lane::kH2D:
      return run_device_lane(pass, lane, *streams_.h2d);
    case schedule::Lane::kD2H:
      return run_device_lane(pass, lane, *streams_.d2h);
    case schedule::Lane::kOptimizer:
      return run_optimizer_lane(pass);
    case schedule::Lane::kStorageRead:
      return storage_read_.run(pass);
    case schedule::Lane::kStorageWrite:
      return storage_write_.run(pass);
    case schedule::Lane::kComm:
      return run_device_lane(pass, lane, *streams_.comm);
    case schedule::Lane::kSend:
      return run_device_lane(pass, lane, *streams_.send);
    case schedule::Lane::kReceive:
      return run_device_lane(pass, lane, *streams_.receive);
    case schedule::Lane::kInner:
      return run_device_lane(pass, lane, *streams_.inner);
  }
}

void Executor::run_device_lane(Pass& run, schedule::Lane lane, device::Stream& stream) {
  const auto& instructions = run.program().schedule().instructions;
  try {
    for (const schedule::InstructionId id : run.program().lane(lane)) {
      const schedule::Instruction& instruction = instructions[id];
      for (const schedule::InstructionId dep : instruction.deps) {
        const schedule::Instruction& awaited = instructions[dep];
        if (awaited.lane == instruction.lane) continue;  // the stream is in order
        if (is_device_lane(awaited.lane)) {
          run.await(dep, Progress::kIssued, instruction);
          stream.wait(run.end_event(dep));
        } else {
          run.await(dep, Progress::kDone, instruction);
        }
      }
      if (run.is_timed(instruction)) stream.record(run.begin_event(id));
      issue(run, instruction, stream);
      if (run.has_end_event(id)) stream.record(run.end_event(id));
      run.set(id, Progress::kIssued);
    }
  } catch (...) {
    run.fail(std::current_exception());
  }
  if (run.failed()) end_collectives(run);
  // Empties the queue also after a failure: nothing may run on when memory goes.
  stream.synchronize(Deadline::after_seconds(deadline_seconds_));
}

void Executor::issue(Pass& run, const schedule::Instruction& instruction, device::Stream& stream) {
  const Program& program = run.program();
  switch (instruction.op) {
    case schedule::Op::kRelease:
      return;
    case schedule::Op::kUpload:
    case schedule::Op::kDownload:
    case schedule::Op::kSpillActivation:
    case schedule::Op::kFetchActivation: {
      const Place& from = program.reads(instruction.id).front();
      const Place& to = program.writes(instruction.id).front();
      SLUICE_CHECK(from.bytes == to.bytes);
      const device::CopyKind kind = instruction.lane == schedule::Lane::kH2D
                                        ? device::CopyKind::kHostToDevice
                                        : device::CopyKind::kDeviceToHost;
      return stream.copy(to.data, from.data, from.bytes, kind);
    }
    case schedule::Op::kExternal: {
      // The host framework must see finished inputs, and later work must see its outputs.
      stream.synchronize(run.deadline());
      const auto signalled = std::make_shared<std::atomic<bool>>(false);
      runner_.run_external(program, instruction,
                           [shared = run.shared_from_this(), signalled](std::exception_ptr error) {
                             if (error) shared->fail(error);
                             signalled->store(true);
                             shared->wake();
                           });
      try {
        run.await_until([&] { return signalled->load(); }, describe(instruction));
      } catch (const RunAborted&) {
        // Another lane failed. The framework still uses these buffers: let it end.
        run.await_after_failure([&] { return signalled->load(); });
        throw;
      }
      return;
    }
    default:
      return runner_.run_on_device(program, instruction, stream);
  }
}

void Executor::run_optimizer_lane(Pass& run) {
  // While updates wait for storage, one thread keeps up with it and the team of threads is not
  // called. Reads end in lots of up to eight (StorageOptions::queue_bytes), so the first updates
  // after a wait say nothing: the team is called again from the twelfth update in turn that did
  // not wait. Calling it for the last few of each lot took 0.08 s of CPU for a step of 2^28
  // parameters.
  constexpr int kReadyForTeam = 12;
  const auto& instructions = run.program().schedule().instructions;
  int ready_in_turn = kReadyForTeam;
  bool has_waited = false;  // since the last update
  for (const schedule::InstructionId id : run.program().lane(schedule::Lane::kOptimizer)) {
    const schedule::Instruction& instruction = instructions[id];
    if (await_dependencies(run, instruction)) has_waited = true;
    if (run.failed()) throw RunAborted{};
    if (instruction.op == schedule::Op::kOptimizerStep) {
      ready_in_turn = std::exchange(has_waited, false) ? 0 : ready_in_turn + 1;
    }
    if (instruction.op != schedule::Op::kRelease) {
      check_host_access(device_, run.program(), instruction);
      const std::int64_t begin_ns = device_.now_ns();
      UpdateTags tags = update_tags(run.program(), instruction);
      // Blocks that neither come from storage nor go there are not checked.
      kernels::UpdateGuard* const guard = tags.empty() ? nullptr : &tags;
      runner_.run_on_host(run.program(), instruction, {guard, ready_in_turn < kReadyForTeam});
      if (run.trace.wanted()) run.trace.record_span(instruction, begin_ns, device_.now_ns());
    }
    run.set(id, Progress::kDone);
  }
}

UpdateTags Executor::update_tags(const Program& program, const schedule::Instruction& update) {
  const auto piece = [&](schedule::InstructionId id, const Place& memory, const Place& storage) {
    const schedule::Instruction& transfer = program.schedule().instructions[id];
    return UpdateTags::Piece{{storage_range(program, transfer, storage, durable_),
                              storage.range_offset, memory.data, memory.bytes},
                             memory.buffer->dtype};
  };
  const auto& [reads, writes] = program.update_transfers(update.id);
  std::vector<UpdateTags::Piece> read;
  std::vector<UpdateTags::Piece> written;
  for (const schedule::InstructionId id : reads) {
    read.push_back(piece(id, program.writes(id).front(), program.reads(id).front()));
  }
  for (const schedule::InstructionId id : writes) {
    written.push_back(piece(id, program.reads(id).front(), program.writes(id).front()));
  }
  return {storage_, std::move(read), std::move(written)};
}

}  // namespace sluice::runtime
