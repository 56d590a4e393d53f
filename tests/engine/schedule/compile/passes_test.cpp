// link and pack: deps that are needed and no others; places that are stable and never shared.
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "engine/schedule/check/validate.hpp"
#include "tests/support/schedule_sketch.hpp"
#include "tests/support/step_examples.hpp"

namespace sluice::schedule {
namespace {

using testing::all;
using testing::ScheduleSketch;
using Ids = std::vector<InstructionId>;

TEST(Link, OrdersReadAfterWriteAcrossLanesAndLeavesLaneOrderAlone) {
  ScheduleSketch sketch;
  const BufferId home = sketch.home(StateKind::kWeight, Tier::kPinned, 64, 0);
  const BufferId window = sketch.state(StateKind::kWeight, Tier::kDevice, 0, 64);
  const BufferId out = sketch.buffer(BufferRole::kActivation, Tier::kDevice, 64);
  sketch.emit(Op::kUpload, Lane::kH2D, {all(home)}, {all(window)});
  sketch.emit(Op::kForward, Lane::kCompute, {all(window)}, {all(out)});
  sketch.emit(Op::kForward, Lane::kCompute, {all(window), all(out)}, {});
  sketch.release(Lane::kCompute, window);
  sketch.release(Lane::kCompute, out);
  const Schedule schedule = sketch.compiled();
  EXPECT_EQ(schedule.instructions[1].deps, Ids{0});
  // Implied: after 0 through 1, after 1 by the lane.
  EXPECT_EQ(schedule.instructions[2].deps, Ids{});
  EXPECT_EQ(schedule.instructions[3].deps, Ids{});
}

TEST(Link, DisjointPiecesOfAWindowDoNotWaitForEachOther) {
  ScheduleSketch sketch;
  const BufferId sum = sketch.state(StateKind::kGradient, Tier::kPinned, 0, 64);
  sketch.emit(Op::kBackwardWeight, Lane::kCompute, {}, {{sum, 0, 128}});
  sketch.emit(Op::kBackwardWeight, Lane::kOptimizer, {}, {{sum, 128, 128}});
  sketch.emit(Op::kGradNorm, Lane::kD2H, {{sum, 64, 128}}, {});
  sketch.emit(Op::kGradNorm, Lane::kH2D, {{sum, 0, 64}}, {});
  sketch.release(Lane::kH2D, sum);
  const Schedule schedule = sketch.compiled();
  EXPECT_EQ(schedule.instructions[1].deps, Ids{});
  EXPECT_EQ(schedule.instructions[2].deps, (Ids{0, 1}));
  EXPECT_EQ(schedule.instructions[3].deps, Ids{0});
  EXPECT_EQ(schedule.instructions[4].deps, Ids{2});
}

TEST(Link, WriteWaitsForTheReadersOfTheOldBytes) {
  ScheduleSketch sketch;
  const BufferId scalar = sketch.buffer(BufferRole::kScalar, Tier::kPinned, 8);
  sketch.emit(Op::kClipFactor, Lane::kOptimizer, {}, {all(scalar)});
  sketch.emit(Op::kForward, Lane::kCompute, {all(scalar)}, {});
  sketch.emit(Op::kForward, Lane::kD2H, {all(scalar)}, {});
  sketch.emit(Op::kClipFactor, Lane::kOptimizer, {}, {all(scalar)});
  sketch.release(Lane::kOptimizer, scalar);
  EXPECT_EQ(sketch.compiled().instructions[3].deps, (Ids{1, 2}));
}

// A storage lane has several instructions in flight: its order does not say which are done.
TEST(Link, HazardsWithinAPipelinedLaneAreExplicit) {
  for (const Lane lane : {Lane::kStorageWrite, Lane::kD2H}) {
    ScheduleSketch sketch;
    const BufferId home = sketch.home(StateKind::kMaster, Tier::kStorage, 64, 0);
    const BufferId piece = sketch.state(StateKind::kMaster, Tier::kPinned, 0, 64);
    sketch.emit(Op::kForward, Lane::kCompute, {}, {all(piece)});
    sketch.emit(Op::kStorageWrite, lane, {all(piece)}, {all(home)});
    sketch.emit(Op::kStorageWrite, lane, {all(piece)}, {all(home)});
    sketch.emit(Op::kCommit, lane, {}, {});
    sketch.release(Lane::kCompute, piece);
    const Schedule schedule = sketch.compiled();
    const bool pipelined = lane_is_pipelined(lane);
    EXPECT_EQ(schedule.instructions[2].deps, pipelined ? Ids{1} : Ids{});
    EXPECT_EQ(schedule.instructions[3].deps, pipelined ? Ids{2} : Ids{});
  }
}

// A Release there does not stop its lane, so later instructions do not inherit its waits.
TEST(Link, AReleaseInAPipelinedLaneOrdersNothingBehindIt) {
  ScheduleSketch sketch = testing::two_writes_of_one_home();
  sketch.emit(Op::kCommit, Lane::kStorageWrite, {}, {});
  const Schedule schedule = sketch.compiled();
  EXPECT_EQ(schedule.instructions[3].deps, Ids{2});
  EXPECT_EQ(schedule.instructions[4].deps, (Ids{1, 2}));
  EXPECT_EQ(schedule.instructions[6].deps, Ids{4});
}

TEST(Link, RefusesUsesOutsideTheirBuffer) {
  ScheduleSketch sketch;
  const BufferId scalar = sketch.buffer(BufferRole::kScalar, Tier::kPinned, 8);
  sketch.emit(Op::kClipFactor, Lane::kOptimizer, {}, {{scalar, 4, 8}});
  EXPECT_THROW(link(sketch.schedule), InternalError);
}

TEST(Pack, MemoryPassesOnOnlyAfterItsRelease) {
  ScheduleSketch sketch;
  const BufferId first = sketch.buffer(BufferRole::kWorkspace, Tier::kDevice, 4096);
  const BufferId second = sketch.buffer(BufferRole::kWorkspace, Tier::kDevice, 4096);
  sketch.emit(Op::kForward, Lane::kCompute, {}, {all(first)});
  sketch.release(Lane::kCompute, first);
  sketch.emit(Op::kForward, Lane::kOptimizer, {}, {all(second)});
  sketch.release(Lane::kOptimizer, second);
  const Schedule schedule = sketch.compiled();
  EXPECT_EQ(schedule.buffers[first].offset_bytes, schedule.buffers[second].offset_bytes);
  EXPECT_EQ(schedule.device_arena_bytes, 4096u);
  EXPECT_EQ(schedule.instructions[2].deps, Ids{1});
  EXPECT_TRUE(validate(schedule).empty());
}

// A window, then an arena buffer: one after the other in the same memory, in that order.
TEST(Pack, WindowsAndArenaMayShareTheDevice) {
  for (const bool shared : {false, true}) {
    ScheduleSketch sketch;
    sketch.schedule.shares_device = shared;
    const BufferId held = sketch.home(StateKind::kMoment1, Tier::kDevice, 1000, 0);
    const BufferId home = sketch.home(StateKind::kWeight, Tier::kPinned, 20000, 0);
    const BufferId window = sketch.state(StateKind::kWeight, Tier::kDevice, 0, 20000);
    sketch.schedule.buffers[window].window = true;
    const BufferId work = sketch.buffer(BufferRole::kWorkspace, Tier::kDevice, 2 * 65536);
    sketch.emit(Op::kUpload, Lane::kH2D, {all(home)}, {all(window)});
    sketch.emit(Op::kForward, Lane::kCompute, {all(window)}, {});
    sketch.release(Lane::kCompute, window);
    sketch.emit(Op::kForward, Lane::kOptimizer, {}, {all(work)}).unit = 1;
    sketch.release(Lane::kOptimizer, work);
    const Schedule schedule = sketch.compiled();
    EXPECT_EQ(validate(schedule, schedule.peak_bytes), std::vector<std::string>{});
    const Buffer& packed = schedule.buffers[work];
    EXPECT_EQ(schedule.instructions[3].deps, shared ? Ids{2} : Ids{});
    if (!shared) {
      EXPECT_EQ(schedule.peak_bytes[0], 2 * 65536 + kPageBytes);
      continue;
    }
    // Persistent buffers come first; the window begins with a slot.
    EXPECT_EQ(schedule.buffers[held].offset_bytes, 0u);
    EXPECT_GE(packed.offset_bytes, 4096u);
    EXPECT_EQ(schedule.buffers[window].slots, (std::vector<std::uint32_t>{1, 2}));
    EXPECT_LT(packed.offset_bytes, 2 * 65536u);
    EXPECT_EQ(schedule.peak_bytes[0], kPageBytes);  // more than three slots
    Schedule wrong = schedule;                      // at the same time
    wrong.instructions[3].deps.clear();
    EXPECT_FALSE(validate(wrong, wrong.peak_bytes).empty());
    wrong = schedule;
    wrong.buffers[window].slots = {0, 1};  // where `held` lies
    EXPECT_FALSE(validate(wrong, wrong.peak_bytes).empty());
  }
}

// Whole steps take less together than the sum of each alone.
TEST(Pack, StepsThatShareTheDeviceTakeLessOfIt) {
  const StepModel model = testing::example_model(3, true, DType::kBF16);
  StepOptions options =
      testing::example_options(model, Tier::kPinned, Tier::kPinned, Tier::kStorage);
  const Schedule apart = compile(model, options, StepKind::kTraining);
  options.shares_device = true;
  const Schedule together = compile(model, options, StepKind::kTraining);
  EXPECT_TRUE(validate(together, together.peak_bytes).empty());
  const std::uint64_t used_apart = apart.slot_count * apart.slot_bytes + apart.device_arena_bytes;
  const std::uint64_t used_together =
      std::max(together.slot_count * together.slot_bytes, together.device_arena_bytes);
  EXPECT_LT(used_together, used_apart);
}

TEST(Pack, PeaksCountSlotsPagesAndStorage) {
  ScheduleSketch sketch;
  const BufferId home = sketch.home(StateKind::kWeight, Tier::kStorage, 20000, 0);
  const BufferId pinned = sketch.state(StateKind::kWeight, Tier::kPinned, 0, 20000);
  const BufferId window = sketch.state(StateKind::kWeight, Tier::kDevice, 0, 20000);
  const BufferId work = sketch.buffer(BufferRole::kWorkspace, Tier::kDevice, 1000);
  sketch.schedule.buffers[window].window = true;
  sketch.emit(Op::kStorageRead, Lane::kStorageRead, {all(home)}, {all(pinned)});
  sketch.emit(Op::kUpload, Lane::kH2D, {all(pinned)}, {all(window)});
  sketch.release(Lane::kH2D, pinned);
  sketch.emit(Op::kForward, Lane::kCompute, {all(window)}, {all(work)});
  sketch.release(Lane::kCompute, window);
  sketch.release(Lane::kCompute, work);
  const Schedule schedule = sketch.compiled();
  EXPECT_EQ(schedule.slot_count, 2u);  // 80,000 bytes in slots of 65,536
  EXPECT_EQ(schedule.peak_bytes[0], 2 * 65536 + kPageBytes);
  EXPECT_EQ(schedule.peak_bytes[1], 81920u);  // 80,000 rounded up to 4 KiB
  EXPECT_EQ(schedule.peak_bytes[2], 81920u);
  EXPECT_TRUE(validate(schedule, schedule.peak_bytes).empty());
  auto budgets = schedule.peak_bytes;
  --budgets[1];
  EXPECT_FALSE(validate(schedule, budgets).empty());
}

// Homes, their second versions and their shadows: all schedules of a run share them.
TEST(Pack, PersistentBuffersHaveTheSamePlacesInEveryScheduleOfARun) {
  struct Run {
    UpdatePlacement update;
    bool durable;
    std::vector<StepKind> kinds;
  };
  const std::vector<Run> runs{
      {UpdatePlacement::kAfterBackward, false, {StepKind::kTraining, StepKind::kEvaluation}},
      {UpdatePlacement::kSpeculative,
       false,
       {StepKind::kTraining, StepKind::kRedo, StepKind::kEvaluation}},
      {UpdatePlacement::kAfterBackward,
       true,
       {StepKind::kSaving, StepKind::kTraining, StepKind::kSave, StepKind::kEvaluation}}};
  const StepModel model = testing::example_model(2, true, DType::kBF16);
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    const Run& run = runs[seed % runs.size()];
    StepOptions options = testing::random_options(model, 2, seed);
    options.update = run.update;
    options.durable = run.durable;
    const Schedule first = compile(model, options, run.kinds.front());
    for (const StepKind kind : run.kinds) {
      const Schedule other = compile(model, options, kind);
      EXPECT_EQ(validate(other), std::vector<std::string>{});
      int persistent = 0;
      for (const Buffer& buffer : first.buffers) {
        if (!buffer.persistent) continue;
        ++persistent;
        const Buffer& same = other.buffers.at(buffer.id);
        EXPECT_TRUE(same.persistent);
        EXPECT_EQ(same.offset_bytes, buffer.offset_bytes);
        EXPECT_EQ(same.slots, buffer.slots);
        EXPECT_EQ(same.versions, buffer.versions);
        EXPECT_EQ(same.shadow_of, buffer.shadow_of);
      }
      EXPECT_GT(persistent, 20);
    }
  }
}

TEST(Pack, RefusesATransientThatIsNeverReleased) {
  ScheduleSketch sketch;
  const BufferId scalar = sketch.buffer(BufferRole::kScalar, Tier::kPinned, 8);
  sketch.emit(Op::kClipFactor, Lane::kOptimizer, {}, {all(scalar)});
  EXPECT_THROW(sketch.compiled(), InternalError);
}

TEST(LinkBytes, SumsByLane) {
  ScheduleSketch sketch;
  sketch.emit(Op::kUpload, Lane::kH2D, {}, {}).bytes = 1;
  sketch.emit(Op::kDownload, Lane::kD2H, {}, {}).bytes = 20;
  sketch.emit(Op::kFetchActivation, Lane::kH2D, {}, {}).bytes = 300;
  sketch.emit(Op::kStorageRead, Lane::kStorageRead, {}, {}).bytes = 4000;
  sketch.emit(Op::kStorageWrite, Lane::kStorageWrite, {}, {}).bytes = 50000;
  sketch.emit(Op::kSendForward, Lane::kComm, {}, {}).bytes = 600000;
  EXPECT_EQ(link_bytes(sketch.schedule), (LinkBytes{301, 20, 4000, 50000}));
}

}  // namespace
}  // namespace sluice::schedule
