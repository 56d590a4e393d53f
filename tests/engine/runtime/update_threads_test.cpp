// How many threads the executor gives an update: one while storage keeps its lane waiting.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "device/host/host_device.hpp"
#include "engine/runtime/executor.hpp"
#include "engine/runtime/program.hpp"
#include "engine/runtime/run_memory.hpp"
#include "tests/support/passing_engine.hpp"
#include "tests/support/schedule_sketch.hpp"
#include "tests/support/temp_directory.hpp"

namespace sluice::runtime {
namespace {

constexpr int kUpdates = 16;
constexpr std::uint64_t kElems = 16384;

// Reads end only when they may.
class HeldEngine final : public testing::PassingEngine {
 public:
  using PassingEngine::PassingEngine;
  void submit(const offload::StorageRequest& request, Callback done) override {
    if (request.op != offload::StorageOp::kRead)
      return PassingEngine::submit(request, std::move(done));
    PassingEngine::submit(request, [this, done = std::move(done)](std::exception_ptr error) {
      while (!may_end) std::this_thread::yield();
      done(std::move(error));
      ++ended;
    });
  }
  std::atomic<bool> may_end = false;
  std::atomic<int> ended = 0;
};

// Notes the threads that each update is given. The first update waits until all reads have ended,
// so that the others find their reads done.
class NotingRunner final : public OperationRunner {
 public:
  explicit NotingRunner(HeldEngine& engine) : engine_(engine) {}
  void run_on_device(const Program&, const schedule::Instruction&, device::Stream&) override {}
  void run_on_host(const Program&, const schedule::Instruction& instruction,
                   const kernels::HostUpdate& how) override {
    if (instruction.op != schedule::Op::kOptimizerStep) return;
    if (one_thread.empty()) {
      while (engine_.ended < kUpdates) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // until their lane has seen it
    }
    one_thread.push_back(how.one_thread);
  }
  std::vector<bool> one_thread;

 private:
  HeldEngine& engine_;
};

// Writes homes to storage, reads them again, and updates the bytes that were read.
schedule::Schedule updates_of_stored_state() {
  testing::ScheduleSketch sketch;
  std::vector<schedule::BufferId> homes, pieces;
  for (int i = 0; i < kUpdates; ++i) {
    homes.push_back(sketch.home(StateKind::kMaster, Tier::kStorage, kElems, 0, i));
    const schedule::BufferId seed = sketch.state(StateKind::kMaster, Tier::kPinned, 0, kElems, i);
    sketch.emit(schedule::Op::kForward, schedule::Lane::kCompute, {}, {testing::all(seed)});
    sketch.emit(schedule::Op::kStorageWrite, schedule::Lane::kStorageWrite, {testing::all(seed)},
                {testing::all(homes.back())});
    sketch.release(schedule::Lane::kStorageWrite, seed);
  }
  for (int i = 0; i < kUpdates; ++i) {
    pieces.push_back(sketch.state(StateKind::kMaster, Tier::kPinned, 0, kElems, i));
    sketch.emit(schedule::Op::kStorageRead, schedule::Lane::kStorageRead, {testing::all(homes[i])},
                {testing::all(pieces.back())});
  }
  for (const schedule::BufferId piece : pieces) {
    sketch.emit(schedule::Op::kOptimizerStep, schedule::Lane::kOptimizer, {testing::all(piece)},
                {testing::all(piece)});
    sketch.release(schedule::Lane::kOptimizer, piece);
  }
  return sketch.compiled();
}

std::vector<bool> threads_given() {
  const schedule::Schedule schedule = updates_of_stored_state();
  const std::array<const schedule::Schedule*, 1> schedules{&schedule};
  allocator::Ledger ledger({kGiB, kGiB, kGiB});
  const auto device = device::make_host_device({});
  HeldEngine engine(offload::make_storage_engine("posix", {}));
  const testing::TempDirectory directory;
  RunMemory memory(*device, ledger, &engine, {directory.path().string()}, memory_need(schedules, 0),
                   make_run_id());
  const Program program(schedule, memory);
  NotingRunner runner(engine);
  Executor executor(*device, memory.storage(), runner, 60.0);
  std::jthread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    engine.may_end = true;
  });
  executor.run(program);
  return runner.one_thread;
}

TEST(UpdateThreads, AnUpdateThatWaitsForStorageRunsOnOneThread) {
  // The first, and those behind it until twelve in turn have not waited.
  std::vector<bool> expected(kUpdates, false);
  std::fill_n(expected.begin(), 12, true);
  std::vector<bool> given;
  // A starved thread may make another update wait.
  for (int attempt = 0; attempt < 5 && given != expected; ++attempt) given = threads_given();
  EXPECT_EQ(given, expected);
}

}  // namespace
}  // namespace sluice::runtime
