// Critical paths of schedules drawn by hand.
#include "engine/planner/critical_path.hpp"

#include <gtest/gtest.h>

#include "tests/support/schedule_sketch.hpp"

namespace sluice::planner {
namespace {

using schedule::InstructionId;
using schedule::Lane;
using schedule::Op;
using testing::ScheduleSketch;

CriticalPath path_of(const schedule::Schedule& schedule,
                     const schedule::SimulationModel& model = {}) {
  std::vector<schedule::InstructionTimes> times;
  const double total_s = schedule::simulate(schedule, model, nullptr, 0, &times).total_s;
  const CriticalPath path = critical_path(schedule, times);
  EXPECT_NEAR(path.total_s(), total_s, 1e-9);
  return path;
}

double seconds(const CriticalPath& path, Resource resource) {
  return path.seconds[static_cast<std::size_t>(resource)];
}

class Sketch : public ScheduleSketch {
 public:
  void add(Lane lane, double cost_s, std::vector<InstructionId> deps = {}) {
    emit(Op::kForward, lane, {}, {}).cost_s = cost_s;
    deps_.push_back(std::move(deps));
  }
  schedule::Schedule finished() {
    schedule::Schedule schedule = compiled();
    for (std::size_t i = 0; i < deps_.size(); ++i) schedule.instructions[i].deps = deps_[i];
    return schedule;
  }

 private:
  std::vector<std::vector<InstructionId>> deps_;
};

// The second rank waits for the pass of the first one, which is compute and no communication.
TEST(CriticalPath, GoesFromRankToRank) {
  Sketch sketch;
  sketch.add(Lane::kCompute, 3.0);
  sketch.add(Lane::kSend, 1.0, {0});
  sketch.add(Lane::kReceive, 0.5);
  sketch.add(Lane::kCompute, 2.0, {2});
  schedule::Schedule world = sketch.finished();
  world.ranks = 2;
  world.instructions[1].op = Op::kSendForward;
  world.instructions[1].peer = 1;
  world.instructions[2].op = Op::kRecvForward;
  world.instructions[2].peer = 0;
  world.instructions[2].rank = world.instructions[3].rank = 1;
  const CriticalPath path = path_of(world);
  EXPECT_EQ(path.instructions, (std::vector<InstructionId>{3, 2, 1, 0}));
  EXPECT_NEAR(seconds(path, Resource::kCompute), 5, 1e-9);
  EXPECT_NEAR(seconds(path, Resource::kComm), 1.5, 1e-9);
}

// The h2d lane is busiest, but only its first copy is waited for.
TEST(CriticalPath, IsTheChainThatTheStepWaitsForNotTheBusiestLane) {
  Sketch sketch;
  sketch.add(Lane::kH2D, 2.0);
  sketch.add(Lane::kCompute, 3.0, {0});
  sketch.add(Lane::kD2H, 1.0, {1});
  sketch.add(Lane::kH2D, 3.5, {0});
  const CriticalPath path = path_of(sketch.finished());
  EXPECT_EQ(path.instructions, (std::vector<InstructionId>{2, 1, 0}));
  EXPECT_NEAR(seconds(path, Resource::kH2D), 2, 1e-9);
  EXPECT_NEAR(seconds(path, Resource::kCompute), 3, 1e-9);
  EXPECT_NEAR(seconds(path, Resource::kD2H), 1, 1e-9);
  EXPECT_EQ(path.longest(), Resource::kCompute);
  EXPECT_NEAR(path.share(Resource::kCompute), 0.5, 1e-9);
}

TEST(CriticalPath, ALaneInUseIsWaitedForAsADepIs) {
  Sketch sketch;
  sketch.add(Lane::kCompute, 4.0);
  sketch.add(Lane::kH2D, 1.0);
  sketch.add(Lane::kCompute, 1.0, {1});
  EXPECT_EQ(path_of(sketch.finished()).instructions, (std::vector<InstructionId>{2, 0}));
}

// The second transfer ends first and retires after the first.
TEST(CriticalPath, ATransferThatIsHeldUpStandsForTheOneThatHoldsIt) {
  Sketch sketch;
  sketch.add(Lane::kStorageRead, 3.0);
  sketch.add(Lane::kStorageRead, 1.0);
  sketch.add(Lane::kCompute, 1.0, {1});
  const CriticalPath path = path_of(sketch.finished());
  EXPECT_EQ(path.instructions, (std::vector<InstructionId>{2, 0}));
  EXPECT_EQ(path.longest(), Resource::kStorage);
}

// Two places in the queue: the third transfer waits for the end of the first.
TEST(CriticalPath, APlaceInTheQueueIsWaitedFor) {
  Sketch sketch;
  sketch.add(Lane::kStorageWrite, 1.0);
  sketch.add(Lane::kStorageWrite, 4.0);
  sketch.add(Lane::kStorageWrite, 9.0);
  schedule::SimulationModel model;
  model.storage_depth = 2;
  model.storage_write_bytes_per_s = 1.0;
  schedule::Schedule schedule = sketch.finished();
  for (auto& instruction : schedule.instructions) instruction.bytes = 0;
  const CriticalPath path = path_of(schedule, model);
  EXPECT_EQ(path.instructions.front(), 2u);
  EXPECT_EQ(path.instructions.back(), 0u);
}

TEST(CriticalPath, OfNothingIsEmpty) {
  const CriticalPath path = path_of(schedule::Schedule{});
  EXPECT_TRUE(path.instructions.empty());
  EXPECT_EQ(path.share(Resource::kCompute), 0);
}

}  // namespace
}  // namespace sluice::planner
