// Programs of hand-built schedules: each use has the address that the packed schedule gives it.
#include "engine/runtime/program.hpp"

#include <gtest/gtest.h>

#include "tests/engine/runtime/runtime_bench.hpp"

namespace sluice::runtime {
namespace {

using schedule::BufferId;
using schedule::Lane;
using schedule::Op;
using schedule::Use;
using testing::all;
using testing::ScheduleSketch;

constexpr std::uint64_t kElems = 4096;
constexpr std::uint64_t kBytes = kElems * sizeof(float);

TEST(Program, AUseHasTheAddressOfItsBufferAndOffset) {
  ScheduleSketch sketch;
  const BufferId pinned = sketch.state(StateKind::kMaster, Tier::kPinned, 0, 2 * kElems);
  const BufferId device = sketch.state(StateKind::kMaster, Tier::kDevice, 0, kElems);
  sketch.emit(Op::kOptimizerStep, Lane::kOptimizer, {}, {all(pinned)});
  sketch.emit(Op::kUpload, Lane::kH2D, {Use{pinned, kBytes, kBytes}}, {all(device)});
  RuntimeBench bench(finished(sketch));
  const Program& program = *bench.program;
  const Place& whole = program.writes(0).front();
  const Place& half = program.reads(1).front();
  EXPECT_EQ(whole.data, bench.memory->address(bench.schedule.buffers[pinned]));
  EXPECT_EQ(whole.bytes, 2 * kBytes);
  EXPECT_EQ(half.data, whole.data + kBytes);
  EXPECT_EQ(half.bytes, kBytes);
  EXPECT_EQ(half.buffer->id, pinned);
  EXPECT_EQ(program.writes(1).front().data, bench.memory->address(bench.schedule.buffers[device]));
}

TEST(Program, AUseOfStorageHasARangeAndNoAddress) {
  RuntimeBench bench(testing::two_writes_of_one_home().compiled());
  const Place& place = bench.program->writes(2).front();
  EXPECT_EQ(place.data, nullptr);
  EXPECT_EQ(place.bytes, 64 * sizeof(float));
  EXPECT_EQ(place.storage_ranges[0], bench.program->writes(4).front().storage_ranges[0]);
  EXPECT_EQ(bench.memory->storage().range(place.storage_ranges[0]).bytes, place.bytes);
}

TEST(Program, AWriteWaitsForAnEarlierOneOfTheSameBytes) {
  RuntimeBench bench(testing::two_writes_of_one_home().compiled());
  EXPECT_TRUE(bench.program->storage_conflicts(2).empty());
  EXPECT_EQ(bench.program->storage_conflicts(4), std::vector<schedule::InstructionId>{2});
  EXPECT_TRUE(bench.program->awaited(2));
}

TEST(Program, WindowsOverTheSameSlotsAreOneMemory) {
  ScheduleSketch sketch;
  const std::uint64_t slot_elems = sketch.schedule.slot_bytes / sizeof(float);
  const BufferId first = sketch.state(StateKind::kWeight, Tier::kDevice, 0, slot_elems);
  const BufferId second = sketch.state(StateKind::kWeight, Tier::kDevice, 0, slot_elems);
  for (const BufferId window : {first, second}) {
    sketch.schedule.buffers[window].window = true;
    sketch.emit(Op::kForward, Lane::kCompute, {}, {all(window)});
    sketch.release(Lane::kCompute, window);
  }
  RuntimeBench bench(finished(sketch));
  // The first is released before the second is made: both take the only slot.
  ASSERT_EQ(bench.schedule.slot_count, 1u);
  EXPECT_EQ(bench.program->writes(0).front().data, bench.program->writes(2).front().data);
}

TEST(Program, KnowsWhichUpdateTakesATransfersMemoryFirst) {
  ScheduleSketch sketch;
  const BufferId home = sketch.home(StateKind::kMaster, Tier::kStorage, kElems, 1);
  const BufferId piece = sketch.state(StateKind::kMaster, Tier::kPinned, 0, kElems);
  sketch.emit(Op::kStorageRead, Lane::kStorageRead, {all(home)}, {all(piece)});
  sketch.emit(Op::kOptimizerStep, Lane::kOptimizer, {all(piece)}, {all(piece)});
  sketch.emit(Op::kStorageWrite, Lane::kStorageWrite, {all(piece)}, {all(home)});
  RuntimeBench bench(finished(sketch));
  const Program& program = *bench.program;
  EXPECT_EQ(program.update_transfers(1).reads, std::vector<schedule::InstructionId>{0});
  EXPECT_EQ(program.update_transfers(1).writes, std::vector<schedule::InstructionId>{2});
  EXPECT_TRUE(program.tagged_in_update(0));
  EXPECT_TRUE(program.tagged_in_update(2));
  // The update, counted from 1, waits for the read; nothing waits for the write.
  EXPECT_EQ(program.needed_by(0), 2u);
  EXPECT_EQ(program.needed_by(2), bench.schedule.instructions.size() + 1);
}

TEST(Program, AFlippedProgramSwapsHomesAndShadows) {
  ScheduleSketch sketch;
  const BufferId home = sketch.home(StateKind::kMaster, Tier::kPinned, kElems, 0);
  const BufferId shadow = sketch.state(StateKind::kMaster, Tier::kPinned, 0, kElems);
  sketch.schedule.buffers[shadow].persistent = true;
  sketch.schedule.buffers[shadow].shadow_of = home;
  sketch.emit(Op::kOptimizerStep, Lane::kOptimizer, {all(home)}, {all(shadow)});
  RuntimeBench bench(finished(sketch));
  const Program flipped(bench.schedule, *bench.memory, true);
  EXPECT_EQ(flipped.reads(0).front().data, bench.program->writes(0).front().data);
  EXPECT_EQ(flipped.writes(0).front().data, bench.program->reads(0).front().data);
}

}  // namespace
}  // namespace sluice::runtime
