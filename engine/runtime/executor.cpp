#include "engine/runtime/executor.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/thread_name.hpp"
#include "engine/runtime/run_state.hpp"
#include "engine/schedule/simulate/memory_timeline.hpp"

namespace sluice::runtime {

void OperationRunner::run_external(const Program&, const schedule::Instruction& instruction,
                                   const std::function<void(std::exception_ptr)>&) {
  throw InternalError("no host framework is attached to run " + describe(instruction));
}

// Shared: a completion that comes after a deadline must still find it.
struct Executor::RunState : RunProgress, std::enable_shared_from_this<Executor::RunState> {
  RunState(const Program& program, EventPool& events, TraceRecorder* recorder,
           std::uint32_t at_step, Deadline deadline)
      : RunProgress(program, events, recorder != nullptr, deadline),
        trace(recorder),
        step(at_step),
        times(program.schedule().instructions.size()) {}
  TraceRecorder* trace;
  std::uint32_t step;
  // Begin and end of each instruction of a traced run, device nanoseconds; one writer each.
  std::vector<std::pair<std::int64_t, std::int64_t>> times;
};

struct Executor::LaneState {
  // Storage lanes: transfers that have ended, published to others in lane order.
  std::vector<std::uint8_t> ended;  // by position in the lane; guarded by mutex
  std::size_t published = 0;        // guarded by mutex
  std::size_t in_flight = 0;        // guarded by mutex
  std::mutex mutex;
  std::condition_variable drained;
};

namespace {

std::size_t stream_index(schedule::Lane lane) {
  switch (lane) {
    case schedule::Lane::kH2D:
      return 1;
    case schedule::Lane::kD2H:
      return 2;
    default:
      return 0;
  }
}

}  // namespace

Executor::Executor(device::Device& device, offload::TaggedSpace& storage, OperationRunner& runner,
                   double deadline_seconds, DurableState* durable)
    : device_(device),
      storage_(storage),
      runner_(runner),
      deadline_seconds_(deadline_seconds),
      durable_(durable),
      events_(std::make_unique<EventPool>(device)) {
  streams_[0] = device.create_stream("compute");
  streams_[1] = device.create_stream("h2d");
  streams_[2] = device.create_stream("d2h");
  for (std::size_t lane = 0; lane < schedule::kLaneCount; ++lane) {
    lanes_.push_back(std::make_unique<LaneState>());
    threads_.emplace_back([this, lane] { lane_loop(lane); });
    name_thread(threads_.back().native_handle(),
                "lane " + std::string(schedule::lane_name(static_cast<schedule::Lane>(lane))));
  }
}

Executor::~Executor() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  run_changed_.notify_all();
  threads_.clear();  // joins
}

void Executor::prepare(const Program& program) {
  events_->reserve(program);
}

void Executor::lane_loop(std::size_t lane) {
  std::uint64_t seen = 0;
  while (true) {
    RunState* run = nullptr;
    {
      std::unique_lock lock(mutex_);
      run_changed_.wait(lock, [&] { return stopping_ || generation_ != seen; });
      if (stopping_) return;
      seen = generation_;
      run = current_;
    }
    try {
      run_lane(*run, lane);
    } catch (const RunAborted&) {
      // Another lane failed and kept the reason.
    } catch (...) {
      run->fail(std::current_exception());
    }
    {
      const std::lock_guard lock(mutex_);
      --lanes_running_;
    }
    run_changed_.notify_all();
  }
}

RunStatistics Executor::run(const Program& program, TraceRecorder* trace, std::uint32_t step) {
  const auto begin = std::chrono::steady_clock::now();
  const std::int64_t pass_begin_ns = device_.now_ns();
  const auto shared = std::make_shared<RunState>(program, *events_, trace, step,
                                                 Deadline::after_seconds(deadline_seconds_));
  RunState& run = *shared;
  {
    std::unique_lock lock(mutex_);
    current_ = &run;
    lanes_running_ = schedule::kLaneCount;
    ++generation_;
    run_changed_.notify_all();
    // Every lane ends by itself: each of its waits has the run's deadline.
    run_changed_.wait(lock, [&] { return lanes_running_ == 0; });
    current_ = nullptr;
  }
  const std::int64_t pass_end_ns = device_.now_ns();
  if (run.failed()) std::rethrow_exception(run.error());
  RunStatistics statistics;
  statistics.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  double busy_seconds = 0;
  for (const schedule::Instruction& instruction : program.schedule().instructions) {
    if (!run.is_timed(instruction)) continue;
    const std::int64_t begin_ns = run.begin_event(instruction.id).time_ns();
    const std::int64_t end_ns = run.end_event(instruction.id).time_ns();
    if (instruction.lane == schedule::Lane::kCompute) {
      busy_seconds += static_cast<double>(end_ns - begin_ns) * 1e-9;
    }
    if (trace != nullptr) record_span(run, instruction, begin_ns, end_ns);
  }
  if (trace != nullptr) {
    record_memory(run);
    statistics.stalls = stalls_of_pass(program.schedule(), run.times, pass_begin_ns, pass_end_ns);
  }
  statistics.compute_stalled_seconds = std::max(0.0, statistics.seconds - busy_seconds);
  return statistics;
}

void Executor::run_lane(RunState& run, std::size_t lane) {
  switch (static_cast<schedule::Lane>(lane)) {
    case schedule::Lane::kCompute:
    case schedule::Lane::kH2D:
    case schedule::Lane::kD2H:
      return run_device_lane(run, lane);
    case schedule::Lane::kOptimizer:
      return run_optimizer_lane(run);
    case schedule::Lane::kStorageRead:
    case schedule::Lane::kStorageWrite:
      return run_storage_lane(run, lane);
    case schedule::Lane::kComm:
      SLUICE_CHECK_MSG(run.program().lane(schedule::Lane::kComm).empty(), "one rank has nobody to talk to");
      return;
  }
}

void Executor::record_span(RunState& run, const schedule::Instruction& instruction, std::int64_t begin_ns,
                           std::int64_t end_ns) {
  TraceSpan span{};
  span.track = run.trace->intern(schedule::lane_name(instruction.lane));
  span.name = run.trace->intern(schedule::op_name(instruction.op));
  span.begin_ns = begin_ns;
  span.end_ns = end_ns;
  span.unit = instruction.unit;
  span.microbatch = instruction.microbatch;
  span.bytes = instruction.bytes;
  span.step = run.step;
  run.trace->span(span);
  run.times[instruction.id] = {begin_ns, end_ns};
}

// Memory counters from the times at which buffers were first written and last used.
void Executor::record_memory(RunState& run) {
  const schedule::Schedule& schedule = run.program().schedule();
  std::vector<std::int64_t> last_use_ns(schedule.buffers.size(), 0);
  struct Moment {
    std::int64_t time_ns;
    const schedule::Instruction* instruction;
    bool ends;
  };
  std::vector<Moment> moments;
  for (const schedule::Instruction& instruction : schedule.instructions) {
    if (instruction.op == schedule::Op::kRelease) {
      std::int64_t time_ns = 0;
      for (const schedule::Use& use : instruction.reads) {
        time_ns = std::max(time_ns, last_use_ns[use.buffer]);
      }
      moments.push_back({time_ns, &instruction, true});
      continue;
    }
    const auto [begin_ns, end_ns] = run.times[instruction.id];
    for (const auto* uses : {&instruction.reads, &instruction.writes}) {
      for (const schedule::Use& use : *uses) {
        last_use_ns[use.buffer] = std::max(last_use_ns[use.buffer], end_ns);
      }
    }
    moments.push_back({begin_ns, &instruction, false});
  }
  std::stable_sort(moments.begin(), moments.end(),
                   [](const Moment& a, const Moment& b) { return a.time_ns < b.time_ns; });
  if (moments.empty()) return;
  const auto seconds = [](std::int64_t ns) { return static_cast<double>(ns) * 1e-9; };
  schedule::MemoryTimeline memory(schedule, run.trace, seconds(moments.front().time_ns));
  for (const Moment& moment : moments) {
    if (moment.ends) {
      memory.end(*moment.instruction, seconds(moment.time_ns));
    } else {
      memory.start(*moment.instruction, seconds(moment.time_ns));
    }
  }
}

// Blocks this host thread until everything that `instruction` depends on is done; true where
// storage kept it waiting.
bool Executor::wait_on_host(RunState& run, const schedule::Instruction& instruction) {
  bool storage_waited_for = false;
  for (const schedule::InstructionId dep : instruction.deps) {
    const schedule::Instruction& awaited = run.program().schedule().instructions[dep];
    // Published in lane order, so behind what it depends on: the lane need not stop for it.
    if (schedule::retires_behind(awaited, instruction)) continue;
    if (is_device_lane(awaited.lane)) {
      run.await(dep, Progress::kIssued, instruction);
      run.end_event(dep).synchronize(run.deadline(), describe(awaited).c_str());
    } else {
      storage_waited_for |= schedule::lane_is_pipelined(awaited.lane) && !run.reached(dep, Progress::kDone);
      run.await(dep, Progress::kDone, instruction);
    }
  }
  return storage_waited_for;
}

// What a host lane is about to touch: a debugging device knows whether its own work is done with
// it.
void Executor::check_host_access(RunState& run, const schedule::Instruction& instruction) {
  const auto check = [this](const std::vector<Place>& places, bool writes) {
    for (const Place& place : places) {
      if (place.data != nullptr) device_.check_host_access(place.data, place.bytes, writes);
    }
  };
  check(run.program().reads(instruction.id), false);
  check(run.program().writes(instruction.id), true);
}

void Executor::run_device_lane(RunState& run, std::size_t lane) {
  device::Stream& stream = *streams_[stream_index(static_cast<schedule::Lane>(lane))];
  const auto& instructions = run.program().schedule().instructions;
  try {
    for (const schedule::InstructionId id : run.program().lane(static_cast<schedule::Lane>(lane))) {
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
  // Empties the queue also after a failure: nothing may run on when memory goes.
  stream.synchronize(Deadline::after_seconds(deadline_seconds_));
}

void Executor::issue(RunState& run, const schedule::Instruction& instruction, device::Stream& stream) {
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
      const device::CopyKind kind =
          instruction.lane == schedule::Lane::kH2D ? device::CopyKind::kHostToDevice : device::CopyKind::kDeviceToHost;
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

void Executor::run_optimizer_lane(RunState& run) {
  // One thread keeps up with storage that it waits for. Reads end several at once, of eight pieces
  // of an update where these are in flight (StorageOptions::queue_bytes), so it is the twelfth
  // update in turn that has not waited which gets the team again: calling the team for the last
  // few of each lot took 0.08 s of CPU for a step of 2^28 parameters.
  constexpr int kReadyForTeam = 12;
  const auto& instructions = run.program().schedule().instructions;
  int ready_in_turn = kReadyForTeam;
  bool has_waited = false;  // since the last update
  for (const schedule::InstructionId id : run.program().lane(schedule::Lane::kOptimizer)) {
    const schedule::Instruction& instruction = instructions[id];
    if (wait_on_host(run, instruction)) has_waited = true;
    if (run.failed()) throw RunAborted{};
    if (instruction.op == schedule::Op::kOptimizerStep) {
      ready_in_turn = std::exchange(has_waited, false) ? 0 : ready_in_turn + 1;
    }
    if (instruction.op != schedule::Op::kRelease) {
      check_host_access(run, instruction);
      const std::int64_t begin_ns = device_.now_ns();
      UpdateTags tags = update_tags(run.program(), instruction);
      // What neither came from storage nor goes there has nobody look at its blocks.
      kernels::UpdateGuard* const guard = tags.empty() ? nullptr : &tags;
      runner_.run_on_host(run.program(), instruction, {guard, ready_in_turn < kReadyForTeam});
      if (run.trace != nullptr) record_span(run, instruction, begin_ns, device_.now_ns());
    }
    run.set(id, Progress::kDone);
  }
}

// What a transfer reads or writes: in a durable run a matter of the pass.
offload::TaggedSpace::RangeId Executor::storage_range(const Program& program, const schedule::Instruction& instruction,
                                             const Place& place) const {
  if (durable_ == nullptr) return place.storage_ranges[0];
  return place.storage_ranges[durable_->slot_of(place, program.of_made_state(instruction.id))];
}

UpdateTags Executor::update_tags(const Program& program, const schedule::Instruction& update) {
  const auto piece = [&](schedule::InstructionId id, const Place& memory, const Place& storage) {
    const schedule::Instruction& transfer = program.schedule().instructions[id];
    return UpdateTags::Piece{{storage_range(program, transfer, storage), storage.range_offset,
                              memory.data, memory.bytes},
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

void Executor::commit(RunState& run, const schedule::Instruction& instruction) {
  SLUICE_CHECK(durable_ != nullptr);
  const std::int64_t begin_ns = device_.now_ns();
  durable_->commit();
  if (run.trace != nullptr) record_span(run, instruction, begin_ns, device_.now_ns());
}

void Executor::run_storage_lane(RunState& run, std::size_t lane_number) {
  const auto lane = static_cast<schedule::Lane>(lane_number);
  LaneState& state = *lanes_[lane_number];
  const std::vector<schedule::InstructionId>& list = run.program().lane(lane);
  const auto& instructions = run.program().schedule().instructions;
  {
    const std::lock_guard lock(state.mutex);
    state.ended.assign(list.size(), 0);
    state.published = 0;
  }
  // Marks position `at` as ended and publishes the longest finished prefix.
  const auto end = [&run, &state, &list](std::size_t at) {
    const std::lock_guard lock(state.mutex);
    state.ended[at] = 1;
    while (state.published < list.size() && state.ended[state.published] != 0) {
      run.set(list[state.published++], Progress::kDone);
    }
  };
  const auto submit = [&](const schedule::Instruction& instruction, std::size_t at) {
    const bool read = instruction.op == schedule::Op::kStorageRead;
    const Place& from = run.program().reads(instruction.id).front();
    const Place& to = run.program().writes(instruction.id).front();
    const Place& memory = read ? to : from;
    const Place& storage = read ? from : to;
    SLUICE_CHECK(memory.bytes == storage.bytes);
    const offload::TaggedSpace::RangeId range = storage_range(run.program(), instruction, storage);
    const std::int64_t begin_ns = device_.now_ns();
    {
      const std::lock_guard lock(state.mutex);
      ++state.in_flight;
    }
    storage_.submit(
        read ? offload::StorageOp::kRead : offload::StorageOp::kWrite, range, storage.range_offset, memory.data,
        memory.bytes,
        [this, shared = run.shared_from_this(), &run, &state, &instruction, end, at,
         begin_ns](std::exception_ptr error) {
          if (error) {
            run.fail(error);
          } else {
            if (run.trace != nullptr) {
              record_span(run, instruction, begin_ns, device_.now_ns());
            }
            end(at);
          }
          const std::lock_guard lock(state.mutex);
          --state.in_flight;
          state.drained.notify_all();
        },
        run.program().needed_by(instruction.id),
        run.program().tagged_in_update(instruction.id) ? offload::TagsBy::kCaller : offload::TagsBy::kSpace);
  };
  std::exception_ptr error;
  try {
    for (std::size_t at = 0; at < list.size(); ++at) {
      const schedule::Instruction& instruction = instructions[list[at]];
      wait_on_host(run, instruction);
      for (const schedule::InstructionId earlier : run.program().storage_conflicts(instruction.id)) {
        run.await(earlier, Progress::kDone, instruction);
      }
      if (run.failed()) throw RunAborted{};
      if (instruction.op == schedule::Op::kRelease) {
        end(at);
      } else if (instruction.op == schedule::Op::kCommit) {
        commit(run, instruction);
        end(at);
      } else {
        check_host_access(run, instruction);
        submit(instruction, at);
      }
    }
  } catch (...) {
    error = std::current_exception();
  }
  std::unique_lock lock(state.mutex);
  const auto idle = [&] { return state.in_flight == 0; };
  if (!state.drained.wait_until(lock, Deadline::after_seconds(deadline_seconds_).time(), idle)) {
    run.fail(
        std::make_exception_ptr(TimeoutError("storage transfers in flight at the end of a step")));
    // The kernel may still write this memory and the callbacks still use this run: there is no
    // safe way on but to wait (as the engine's destructor does).
    state.drained.wait(lock, idle);
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace sluice::runtime
