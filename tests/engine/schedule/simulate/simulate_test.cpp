// The simulator against times that can be worked out by hand.
#include "engine/schedule/simulate/simulate.hpp"

#include <gtest/gtest.h>

#include "tests/support/pipeline_example.hpp"
#include "tests/support/schedule_sketch.hpp"
#include "tests/support/step_examples.hpp"

namespace sluice::schedule {
namespace {

using testing::all;
using testing::ScheduleSketch;

constexpr std::size_t at(Lane lane) {
  return static_cast<std::size_t>(lane);
}

// Two independent instructions of one second, on two lanes.
Schedule side_by_side(Lane a, Lane b) {
  ScheduleSketch sketch;
  sketch.emit(Op::kForward, a, {}, {});
  sketch.emit(Op::kForward, b, {}, {});
  return sketch.compiled();
}

TEST(Simulate, LanesRunSideBySideAndOneLaneInOrder) {
  EXPECT_DOUBLE_EQ(simulate(side_by_side(Lane::kCompute, Lane::kH2D), {}).total_s, 1.0);
  EXPECT_DOUBLE_EQ(simulate(side_by_side(Lane::kCompute, Lane::kCompute), {}).total_s, 2.0);
}

TEST(Simulate, CoresAreSharedByDemand) {
  SimulationModel model;
  model.cores = 2;
  model.cores_used[at(Lane::kCompute)] = 2;
  model.cores_used[at(Lane::kOptimizer)] = 2;
  EXPECT_NEAR(simulate(side_by_side(Lane::kCompute, Lane::kOptimizer), model).total_s, 2.0, 1e-9);
  EXPECT_NEAR(simulate(side_by_side(Lane::kCompute, Lane::kStorageRead), model).total_s, 1.0, 1e-9);
  model.cores_used[at(Lane::kOptimizer)] = 1;
  // 3 cores wanted of 2: both at 2/3 of their rate.
  EXPECT_NEAR(simulate(side_by_side(Lane::kCompute, Lane::kOptimizer), model).total_s, 1.5, 1e-9);
}

TEST(Simulate, ReadingAndWritingShareTheStorageDevice) {
  const Schedule schedule = side_by_side(Lane::kStorageRead, Lane::kStorageWrite);
  SimulationModel model;
  EXPECT_NEAR(simulate(schedule, model).total_s, 1.0, 1e-9);
  model.storage_duplex = 1.25;
  EXPECT_NEAR(simulate(schedule, model).total_s, 1.6, 1e-9);
  model.storage_duplex = 1.0;
  EXPECT_NEAR(simulate(schedule, model).total_s, 2.0, 1e-9);
  // Mixing costs more than half here; a lane alone does not pay for it.
  model.storage_duplex = 0.5;
  EXPECT_NEAR(simulate(schedule, model).total_s, 4.0, 1e-9);
  EXPECT_NEAR(simulate(side_by_side(Lane::kStorageRead, Lane::kCompute), model).total_s, 1.0, 1e-9);
}

// In flight together they share the lane's bandwidth: no faster, but the second does not wait to
// start.
TEST(Simulate, AStorageLaneHasSeveralInFlight) {
  ScheduleSketch sketch;
  sketch.emit(Op::kForward, Lane::kStorageRead, {}, {}).cost_s = 3.0;
  sketch.emit(Op::kForward, Lane::kStorageRead, {}, {}).cost_s = 1.0;
  sketch.emit(Op::kForward, Lane::kCompute, {}, {}).cost_s = 1.0;
  Schedule schedule = sketch.compiled();
  schedule.instructions[2].deps = {1};  // retires after 0
  EXPECT_NEAR(simulate(schedule, {}).total_s, 5.0, 1e-9);
  SimulationModel model;
  model.storage_depth = 1;
  EXPECT_NEAR(simulate(schedule, model).total_s, 5.0, 1e-9);
  EXPECT_NEAR(simulate(schedule, model).busy_s[0][at(Lane::kStorageRead)], 4.0, 1e-9);
}

// A transfer alone waits for most of its time; several fill the bandwidth, each adding a part.
TEST(Simulate, TransfersAtOnceFillTheBandwidth) {
  ScheduleSketch sketch;
  for (int i = 0; i < 4; ++i) sketch.emit(Op::kForward, Lane::kStorageRead, {}, {}).bytes = 100;
  const Schedule schedule = sketch.compiled();
  SimulationModel model;
  model.storage_read_bytes_per_s = 200;  // each takes half of it when alone
  EXPECT_NEAR(simulate(schedule, model).total_s, 2.0, 1e-9);
  model.storage_read_bytes_per_s = 1000;
  EXPECT_NEAR(simulate(schedule, model).total_s, 1.0, 1e-9);
  model.storage_overlap = 1.0 / 3;  // four at once: twice as fast as one
  EXPECT_NEAR(simulate(schedule, model).total_s, 2.0, 1e-9);
  model.storage_overlap = 0;
  EXPECT_NEAR(simulate(schedule, model).total_s, 4.0, 1e-9);
  model.storage_overlap = 1;
  model.storage_depth = 2;
  EXPECT_NEAR(simulate(schedule, model).total_s, 2.0, 1e-9);
  model.storage_read_bytes_per_s = 80;  // less than one reaches alone: the lane's word counts
  EXPECT_NEAR(simulate(schedule, model).total_s, 5.0, 1e-9);
}

// Work alone bounds a step from below, whatever waits for what.
TEST(Simulate, NoStepIsFasterThanItsBusiestLane) {
  ScheduleSketch sketch;
  for (int i = 0; i < 4; ++i) {
    sketch.emit(Op::kForward, Lane::kStorageRead, {}, {}).bytes = 100;
    sketch.emit(Op::kForward, Lane::kStorageWrite, {}, {}).bytes = 100;
  }
  sketch.emit(Op::kForward, Lane::kCompute, {}, {}).cost_s = 1.5;
  Schedule schedule = sketch.compiled();
  SimulationModel model;
  model.storage_read_bytes_per_s = 400;
  model.storage_write_bytes_per_s = 200;
  model.storage_duplex = 1.2;
  EXPECT_NEAR(busiest_lane_s(schedule, model), 2.5, 1e-9);  // a second and two, at 1.2 at once
  EXPECT_GE(simulate(schedule, model).total_s, 2.5 - 1e-9);
  model.storage_duplex = 2;
  EXPECT_NEAR(busiest_lane_s(schedule, model), 2.0, 1e-9);
  EXPECT_GE(simulate(schedule, model).total_s, 2.0 - 1e-9);
  schedule.instructions.back().cost_s = 3;
  EXPECT_NEAR(busiest_lane_s(schedule, model), 3.0, 1e-9);
}

// A Release after a transfer says when its buffer is free; the lane's next transfer need not wait.
TEST(Simulate, AReleaseDoesNotHoldUpAStorageLane) {
  ScheduleSketch sketch;
  const BufferId from = sketch.home(StateKind::kMaster, Tier::kStorage, 16384, 0);
  for (int i = 0; i < 2; ++i) {
    const BufferId piece = sketch.state(StateKind::kMaster, Tier::kPinned, 0, 16384);
    sketch.emit(Op::kStorageRead, Lane::kStorageRead, {all(from)}, {all(piece)}).bytes = 65536;
    sketch.release(Lane::kStorageRead, piece);
  }
  Schedule schedule = sketch.compiled();
  EXPECT_EQ(schedule.instructions[1].deps, std::vector<InstructionId>{0});
  schedule.instructions[2].deps.clear();  // as if it had other memory
  SimulationModel model;
  model.storage_read_bytes_per_s = 1e6;
  EXPECT_NEAR(simulate(schedule, model).total_s, 1.0, 1e-9);
}

// The memory that it frees stays occupied until the transfer in front of it has ended.
TEST(Simulate, AReleaseInAStorageLaneTakesEffectWhenItRetires) {
  ScheduleSketch sketch;
  const BufferId home = sketch.home(StateKind::kMaster, Tier::kStorage, 16384, 0);
  const BufferId piece = sketch.state(StateKind::kMaster, Tier::kPinned, 0, 16384);
  sketch.emit(Op::kForward, Lane::kCompute, {}, {all(piece)}).cost_s = 0.5;
  sketch.emit(Op::kStorageWrite, Lane::kStorageWrite, {all(piece)}, {all(home)});
  sketch.release(Lane::kStorageWrite, piece);
  TraceRecorder trace;
  simulate(sketch.compiled(), {}, &trace);
  std::int64_t freed_ns = 0;
  for (const TraceCounter& counter : trace.counters()) {
    if (trace.name_of(counter.name) == "pinned/weight" && counter.value == 0) {
      freed_ns = counter.time_ns;
    }
  }
  EXPECT_EQ(freed_ns, 1'500'000'000);
}

TEST(Simulate, StallIsTheComputeLanesIdleTime) {
  ScheduleSketch sketch;
  const BufferId home = sketch.home(StateKind::kWeight, Tier::kPinned, 64, 0);
  const BufferId window = sketch.state(StateKind::kWeight, Tier::kDevice, 0, 64);
  sketch.emit(Op::kUpload, Lane::kH2D, {all(home)}, {all(window)}).cost_s = 3.0;
  sketch.emit(Op::kForward, Lane::kCompute, {all(window)}, {}).cost_s = 2.0;
  sketch.release(Lane::kCompute, window);
  const Simulation simulation = simulate(sketch.compiled(), {});
  EXPECT_NEAR(simulation.total_s, 5.0, 1e-9);
  EXPECT_NEAR(simulation.compute_stall_s, 3.0, 1e-9);
  EXPECT_NEAR(simulation.busy_s[0][at(Lane::kH2D)], 3.0, 1e-9);
  EXPECT_EQ(simulation.live_peak_bytes[0], 256u);
  EXPECT_EQ(simulation.live_peak_bytes[1], 256u);
}

TEST(Simulate, WritesTheExecutorsTraceFormat) {
  ScheduleSketch sketch;
  const BufferId work = sketch.buffer(BufferRole::kWorkspace, Tier::kDevice, 4096);
  sketch.schedule.buffers[work].category = Category::kWorkspace;
  sketch.emit(Op::kForward, Lane::kCompute, {}, {all(work)}).cost_s = 0.5;
  sketch.release(Lane::kCompute, work);
  TraceRecorder trace;
  simulate(sketch.compiled(), {}, &trace, 7);
  ASSERT_EQ(trace.spans().size(), 1u);
  const TraceSpan span = trace.spans()[0];
  EXPECT_EQ(trace.name_of(span.track), "compute");
  EXPECT_EQ(trace.name_of(span.name), "Forward");
  EXPECT_EQ(span.begin_ns, 0);
  EXPECT_EQ(span.end_ns, 500'000'000);
  EXPECT_EQ(span.step, 7u);
  ASSERT_EQ(trace.counters().size(), 2u);
  EXPECT_EQ(trace.name_of(trace.counters()[0].name), "device/workspace");
  EXPECT_EQ(trace.counters()[0].value, 4096);
  EXPECT_EQ(trace.counters()[1].value, 0);
  EXPECT_EQ(trace.counters()[1].time_ns, 500'000'000);
}

// Two stages, GPipe order, one second per instruction: messages make the second stage wait.
TEST(Simulate, MessagesArriveAfterTheyAreSent) {
  Schedule schedule = testing::two_stage_pipeline(1);
  for (Instruction& instruction : schedule.instructions) {
    if (instruction.op != Op::kRelease) instruction.cost_s = 1.0;
  }
  // F, send, recv, loss, I, send, recv, W, accumulate, step: a chain of ten.
  EXPECT_NEAR(simulate(schedule, {}).total_s, 10.0, 1e-9);
}

TEST(Simulate, NeverHoldsMoreThanThePlanSays) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const StepModel model = testing::example_model(2, seed % 2 == 0, DType::kBF16);
    Schedule schedule =
        compile(model, testing::random_options(model, 2, seed), StepKind::kTraining);
    const CounterRng random(seed, stream_of("test/costs"));
    double most = 0.0;
    for (Instruction& instruction : schedule.instructions) {
      if (instruction.op == Op::kRelease) continue;
      instruction.cost_s = random.uniform(instruction.id);
      most += instruction.cost_s;
    }
    SimulationModel machine;
    machine.cores = 2;
    machine.cores_used.fill(1);
    machine.storage_duplex = 1.2;
    const Simulation simulation = simulate(schedule, machine);
    EXPECT_LE(simulation.total_s, most * 2);
    for (const Tier tier : kTiers) {
      EXPECT_LE(simulation.live_peak_bytes[static_cast<std::size_t>(tier)],
                schedule.peak_bytes[static_cast<std::size_t>(tier)]);
    }
    // A faster machine is not slower.
    machine.cores = 0;
    machine.storage_duplex = 2;
    EXPECT_LE(simulate(schedule, machine).total_s, simulation.total_s + 1e-9);
  }
}

}  // namespace
}  // namespace sluice::schedule
