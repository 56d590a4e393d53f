// The executor over hand-built schedules: order, failures, deadlines.
#include "engine/runtime/executor.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <vector>

#include "tests/engine/runtime/runtime_bench.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/scratch_directory.hpp"
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
  RuntimeBench bench(finished(round_trip()));
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
  RuntimeBench bench(finished(round_trip()));
  TraceRecorder trace;
  const RunStatistics statistics = bench.run(&trace);
  const auto& instructions = bench.schedule.instructions;
  const auto works = [](const schedule::Instruction& instruction) {
    return instruction.op != Op::kRelease;
  };
  EXPECT_EQ(static_cast<std::ptrdiff_t>(trace.spans().size()),
            std::count_if(instructions.begin(), instructions.end(), works));
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
  RuntimeBench bench(finished(sketch));
  std::vector<schedule::InstructionId> order;
  bench.runner.on_host = [&](const Program&, const schedule::Instruction& instruction) {
    order.push_back(instruction.id);
  };
  bench.run();
  std::vector<schedule::InstructionId> expected;
  for (schedule::InstructionId i = 0; i < kUpdates; ++i) expected.push_back(2 * i + 1);
  EXPECT_EQ(order, expected);
}

TEST(Executor, AFailureEndsThePassAndTheNextOneRuns) {
  RuntimeBench bench(finished(round_trip()));
  bool fails = true;
  int later = 0;
  bench.runner.on_host = [&](const Program&, const schedule::Instruction&) {
    if (fails) throw DeviceError("the update found a NaN");
  };
  bench.runner.on_device = [&](const Program&, const schedule::Instruction& instruction) {
    if (instruction.id != 0) ++later;
  };
  EXPECT_EQ(testing::message_of<DeviceError>([&] { bench.run(); }), "the update found a NaN");
  EXPECT_EQ(later, 0);  // nothing after the failed instruction ran
  fails = false;
  bench.run();
  EXPECT_EQ(later, 1);
}

TEST(Executor, AFailedTransferEndsThePassWithItsError) {
  RuntimeBench bench(finished(round_trip()), 60.0,
                     [](std::unique_ptr<offload::StorageEngine> inner) {
                       // The first operation is the preallocation of the space's file.
                       return offload::make_faulty_engine(std::move(inner),
                                                          {offload::StorageFault::kEio, 1, false});
                     });
  EXPECT_THROW(bench.run(), IoError);
}

TEST(RunProgress, AWaitBehindItsDeadlineNamesTheInstructionAndItsLane) {
  RuntimeBench bench(finished(round_trip()));
  EventPool events(*bench.device);
  RunProgress progress(*bench.program, events, false, Deadline::after_seconds(0));
  const auto& instructions = bench.schedule.instructions;
  ASSERT_EQ(instructions[2].op, Op::kStorageWrite);
  const std::string message = testing::message_of<TimeoutError>(
      [&] { progress.await(2, Progress::kDone, instructions[3]); });
  EXPECT_TRUE(testing::holds(message, "on lane storage_write, awaited by StorageRead"));
  progress.set(2, Progress::kDone);
  EXPECT_NO_THROW(progress.await(2, Progress::kDone, instructions[3]));
}

TEST(RunProgress, KeepsTheFirstFailureAndEndsEveryWait) {
  RuntimeBench bench(finished(round_trip()));
  EventPool events(*bench.device);
  RunProgress progress(*bench.program, events, false, Deadline::after_seconds(60));
  progress.fail(std::make_exception_ptr(DeviceError("the first")));
  progress.fail(std::make_exception_ptr(DeviceError("the second")));
  EXPECT_THROW(progress.await(2, Progress::kDone, bench.schedule.instructions[3]), RunAborted);
  EXPECT_THROW(progress.await_until([] { return false; }, "nothing"), RunAborted);
  EXPECT_EQ(testing::message_of<DeviceError>([&] { std::rethrow_exception(progress.error()); }),
            "the first");
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
