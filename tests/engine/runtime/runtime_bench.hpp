// All that a hand-built schedule needs in order to run: a host device, memory, a storage space.
#pragma once

#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/host/host_device.hpp"
#include "engine/runtime/executor.hpp"
#include "engine/runtime/program.hpp"
#include "engine/runtime/run_memory.hpp"
#include "offload/storage_engine.hpp"
#include "tests/support/schedule_sketch.hpp"
#include "tests/support/temp_directory.hpp"

namespace sluice::runtime {

// The sketch, compiled once each buffer that no instruction releases is released at the end, on the
// lane that uses it last. The instructions of the sketch keep their places in the list.
inline schedule::Schedule finished(testing::ScheduleSketch sketch) {
  std::vector<std::optional<schedule::Lane>> last(sketch.schedule.buffers.size());
  for (const schedule::Instruction& instruction : sketch.schedule.instructions) {
    for (const auto* uses : {&instruction.reads, &instruction.writes}) {
      for (const schedule::Use& use : *uses) {
        last[use.buffer] = instruction.lane;
        if (instruction.op == schedule::Op::kRelease) last[use.buffer].reset();
      }
    }
  }
  for (const schedule::Buffer& buffer : sketch.schedule.buffers) {
    if (!buffer.persistent && last[buffer.id]) sketch.release(*last[buffer.id], buffer.id);
  }
  return sketch.compiled();
}

// Calls functions that a test sets; by default an instruction does nothing.
class ScriptedRunner final : public OperationRunner {
 public:
  using Work = std::function<void(const Program&, const schedule::Instruction&)>;
  void run_on_device(const Program& program, const schedule::Instruction& instruction,
                     device::Stream& stream) override {
    if (on_device) {
      stream.launch([this, &program, &instruction] { on_device(program, instruction); });
    }
  }
  void run_on_host(const Program& program, const schedule::Instruction& instruction,
                   const kernels::HostUpdate&) override {
    if (on_host) on_host(program, instruction);
  }
  Work on_device;  // on the compute stream's worker
  Work on_host;    // on the optimizer lane's thread
};

// Runs one schedule.
class RuntimeBench {
 public:
  using WrapEngine = std::function<std::unique_ptr<offload::StorageEngine>(
      std::unique_ptr<offload::StorageEngine>)>;
  explicit RuntimeBench(schedule::Schedule its_schedule, double deadline_seconds = 60.0,
                        const WrapEngine& wrap = {})
      : schedule(std::move(its_schedule)),
        engine(offload::make_storage_engine("posix", {})),
        deadline_seconds_(deadline_seconds) {
    if (wrap) engine = wrap(std::move(engine));
    const std::array<const schedule::Schedule*, 1> schedules{&schedule};
    need = memory_need(schedules, 0);
    memory = std::make_unique<RunMemory>(*device, ledger, engine.get(),
                                         std::vector<std::string>{directory_.path().string()}, need,
                                         make_run_id());
    program = std::make_unique<Program>(schedule, *memory);
    executor = std::make_unique<Executor>(*device, memory->storage(), runner, deadline_seconds_);
  }

  RunStatistics run(TraceRecorder* trace = nullptr) { return executor->run(*program, trace); }
  // With another runner than the scripted one.
  void run_with(OperationRunner& other, double deadline_seconds = 60.0) {
    Executor(*device, memory->storage(), other, deadline_seconds).run(*program);
  }

 private:
  const testing::TempDirectory directory_;

 public:
  const schedule::Schedule schedule;
  std::unique_ptr<device::Device> device = device::make_host_device({});
  allocator::Ledger ledger{{kGiB, kGiB, kGiB}};
  std::unique_ptr<offload::StorageEngine> engine;
  MemoryNeed need;
  ScriptedRunner runner;
  std::unique_ptr<RunMemory> memory;
  std::unique_ptr<Program> program;
  std::unique_ptr<Executor> executor;

 private:
  double deadline_seconds_;
};

}  // namespace sluice::runtime
