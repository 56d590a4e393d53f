// How many threads the executor gives an update: one while storage keeps its lane waiting.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "tests/engine/runtime/runtime_bench.hpp"
#include "tests/support/passing_engine.hpp"

namespace sluice::runtime {
namespace {

using schedule::Lane;
using schedule::Op;
using testing::all;

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
    if (instruction.op != Op::kOptimizerStep) return;
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
    sketch.emit(Op::kForward, Lane::kCompute, {}, {all(seed)});
    sketch.emit(Op::kStorageWrite, Lane::kStorageWrite, {all(seed)}, {all(homes.back())});
    sketch.release(Lane::kStorageWrite, seed);
  }
  for (int i = 0; i < kUpdates; ++i) {
    pieces.push_back(sketch.state(StateKind::kMaster, Tier::kPinned, 0, kElems, i));
    sketch.emit(Op::kStorageRead, Lane::kStorageRead, {all(homes[i])}, {all(pieces.back())});
  }
  for (const schedule::BufferId piece : pieces) {
    sketch.emit(Op::kOptimizerStep, Lane::kOptimizer, {all(piece)}, {all(piece)});
    sketch.release(Lane::kOptimizer, piece);
  }
  return sketch.compiled();
}

std::vector<bool> threads_given() {
  HeldEngine* engine = nullptr;
  RuntimeBench bench(updates_of_stored_state(), 60.0, [&](auto inner) {
    auto held = std::make_unique<HeldEngine>(std::move(inner));
    engine = held.get();
    return held;
  });
  NotingRunner runner(*engine);
  std::jthread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    engine->may_end = true;
  });
  bench.run_with(runner);
  return runner.one_thread;
}

TEST(UpdateThreads, AnUpdateThatWaitsForStorageRunsOnOneThread) {
  // The first, and those after it until twelve in turn have not waited.
  std::vector<bool> expected(kUpdates, false);
  std::fill_n(expected.begin(), 12, true);
  std::vector<bool> given;
  // A starved thread may make another update wait.
  for (int attempt = 0; attempt < 5 && given != expected; ++attempt) given = threads_given();
  EXPECT_EQ(given, expected);
}

}  // namespace
}  // namespace sluice::runtime
