// The executor over hand-built schedules: order, failures, deadlines.
#include "engine/runtime/executor.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <vector>

#include "tests/engine/runtime/runtime_bench.hpp"
#include "tests/support/passing_engine.hpp"
#include "tests/support/thread_faults.hpp"

namespace sluice::runtime {
namespace {

using schedule::BufferId;
using schedule::Lane;
using schedule::Op;
using testing::all;
using testing::ScheduleSketch;

constexpr std::uint64_t kElems = 4096;

// A piece goes from the compute stream to pinned memory and storage, back, through an update and up
// to the device again: it meets every lane that one rank has.
ScheduleSketch round_trip() {
  ScheduleSketch sketch;
  const BufferId home = sketch.home(StateKind::kMaster, Tier::kStorage, kElems, 0);
  const BufferId made = sketch.state(StateKind::kMaster, Tier::kDevice, 0, kElems);
  const BufferId staged = sketch.state(StateKind::kMaster, Tier::kPinned, 0, kElems);
  const BufferId read = sketch.state(StateKind::kMaster, Tier::kPinned, 0, kElems);
  const BufferId shown = sketch.state(StateKind::kMaster, Tier::kDevice, 0, kElems);
  sketch.emit(Op::kForward, Lane::kCompute, {}, {all(made)});
  sketch.emit(Op::kDownload, Lane::kD2H, {all(made)}, {all(staged)});
  sketch.emit(Op::kStorageWrite, Lane::kStorageWrite, {all(staged)}, {all(home)});
  sketch.emit(Op::kStorageRead, Lane::kStorageRead, {all(home)}, {all(read)});
  sketch.emit(Op::kOptimizerStep, Lane::kOptimizer, {all(read)}, {all(read)});
  sketch.emit(Op::kUpload, Lane::kH2D, {all(read)}, {all(shown)});
  sketch.emit(Op::kForward, Lane::kCompute, {all(shown)}, {all(made)});
  return sketch;
}

std::vector<float> floats_at(const Place& place) {
  std::vector<float> values(place.bytes / sizeof(float));
  std::memcpy(values.data(), place.data, place.bytes);
  return values;
}

TEST(Executor, HandsAPieceFromLaneToLane) {
  RuntimeBench bench(round_trip().compiled());
  std::vector<float> seen;
  bench.runner.on_device = [&](const Program& program, const schedule::Instruction& instruction) {
    if (instruction.id == 0) {
      std::vector<float> values(kElems);
      std::iota(values.begin(), values.end(), 0.0f);
      const Place& to = program.writes(instruction.id).front();
      std::memcpy(to.data, values.data(), to.bytes);
    } else {
      seen = floats_at(program.reads(instruction.id).front());
    }
  };
  bench.runner.on_host = [](const Program& program, const schedule::Instruction& instruction) {
    const Place& place = program.writes(instruction.id).front();
    std::vector<float> values = floats_at(place);
    for (float& value : values) value += 0.5f;
    std::memcpy(place.data, values.data(), place.bytes);
  };
  for (int pass = 0; pass < 3; ++pass) {
    seen.clear();
    bench.run();
    ASSERT_EQ(seen.size(), kElems);
    for (std::size_t i = 0; i < kElems; ++i) ASSERT_EQ(seen[i], static_cast<float>(i) + 0.5f);
  }
}

TEST(Executor, ATracedPassHasASpanForEveryInstruction) {
  RuntimeBench bench(round_trip().compiled());
  TraceRecorder trace;
  const RunStatistics statistics = bench.run(&trace);
  EXPECT_EQ(trace.spans().size(), bench.schedule.instructions.size());
  EXPECT_TRUE(statistics.stalls.has_value());
  EXPECT_FALSE(trace.counters().empty());
  EXPECT_FALSE(bench.run().stalls.has_value());
}

// Updates of one lane run in the order of the list, and never two at once.
TEST(Executor, ALaneKeepsTheOrderOfItsList) {
  ScheduleSketch sketch;
  constexpr int kUpdates = 20;
  for (int i = 0; i < kUpdates; ++i) {
    const BufferId piece = sketch.state(StateKind::kMaster, Tier::kPinned, 0, kElems, i);
    sketch.emit(Op::kForward, Lane::kCompute, {}, {all(piece)});
    sketch.emit(Op::kOptimizerStep, Lane::kOptimizer, {all(piece)}, {all(piece)});
  }
  RuntimeBench bench(sketch.compiled());
  std::vector<schedule::InstructionId> order;
  bench.runner.on_host = [&](const Program&, const schedule::Instruction& instruction) {
    order.push_back(instruction.id);
  };
  bench.run();
  EXPECT_EQ(order, bench.program->lane(Lane::kOptimizer));
  EXPECT_EQ(order.size(), static_cast<std::size_t>(kUpdates));
}

TEST(Executor, AFailureEndsThePassAndTheNextOneRuns) {
  RuntimeBench bench(round_trip().compiled());
  bool fails = true;
  int later = 0;
  bench.runner.on_host = [&](const Program&, const schedule::Instruction&) {
    if (fails) throw DeviceError("the update found a NaN");
  };
  bench.runner.on_device = [&](const Program&, const schedule::Instruction& instruction) {
    if (instruction.id != 0) ++later;
  };
  try {
    bench.run();
    FAIL() << "the pass did not fail";
  } catch (const DeviceError& error) {
    EXPECT_STREQ(error.what(), "the update found a NaN");
  }
  EXPECT_EQ(later, 0);  // nothing behind the failed instruction ran
  fails = false;
  bench.run();
  EXPECT_EQ(later, 1);
}

TEST(Executor, AFailedTransferEndsThePassWithItsError) {
  RuntimeBench bench(round_trip().compiled(), 60.0,
                     [](std::unique_ptr<offload::StorageEngine> inner) {
                       // The first operation is the preallocation of the space's file.
                       return offload::make_faulty_engine(std::move(inner),
                                                          {offload::StorageFault::kEio, 1, false});
                     });
  EXPECT_THROW(bench.run(), IoError);
}

// Holds one write back until it is let go.
class HoldingEngine final : public testing::PassingEngine {
 public:
  using PassingEngine::PassingEngine;
  void submit(const offload::StorageRequest& request, Callback done) override {
    if (request.op == offload::StorageOp::kWrite) {
      PassingEngine::submit(request, [this, done = std::move(done)](std::exception_ptr error) {
        while (!may_end) std::this_thread::yield();
        done(std::move(error));
      });
    } else {
      PassingEngine::submit(request, std::move(done));
    }
  }
  std::atomic<bool> may_end = false;
};

TEST(Executor, APassBehindItsDeadlineNamesTheInstructionAndItsLane) {
  HoldingEngine* holding = nullptr;
  RuntimeBench bench(round_trip().compiled(), 0.05,
                     [&](std::unique_ptr<offload::StorageEngine> inner) {
                       auto engine = std::make_unique<HoldingEngine>(std::move(inner));
                       holding = engine.get();
                       return engine;
                     });
  // The pass may only end once nothing uses its memory: it is let go when the deadline has passed.
  std::jthread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    holding->may_end = true;
  });
  try {
    bench.run();
    FAIL() << "the pass ended in time";
  } catch (const TimeoutError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("storage_write"), std::string::npos) << message;
  }
}

TEST(LaneThreads, RunEveryLaneOnceAndAgain) {
  LaneThreads lanes;
  std::mutex mutex;
  for (int pass = 0; pass < 3; ++pass) {
    std::vector<Lane> seen;
    lanes.run([&](Lane lane) {
      const std::lock_guard lock(mutex);
      seen.push_back(lane);
    });
    std::sort(seen.begin(), seen.end());
    ASSERT_EQ(seen.size(), schedule::kLaneCount);
    for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], static_cast<Lane>(i));
  }
}

// Without an order to stop, the threads that did start would be waited for without end.
TEST(LaneThreads, AThreadThatCannotStartStopsTheOthers) {
  for (std::uint64_t at = 1; at <= schedule::kLaneCount; ++at) {
    const testing::FailThreadStart fault(at);
    EXPECT_THROW(LaneThreads(), ThreadError);
  }
  const testing::FailThreadStart none(0);
  EXPECT_NO_THROW(LaneThreads());
  EXPECT_EQ(none.count(), schedule::kLaneCount);
}

}  // namespace
}  // namespace sluice::runtime
