#include "engine/runtime/stall_causes.hpp"

#include <gtest/gtest.h>

#include "tests/support/planned_session.hpp"
#include "tests/support/temp_directory.hpp"

namespace sluice::testing {
namespace {

constexpr std::int64_t kMs = 1'000'000;

// A pass made by hand: when each instruction ran, on which lane, and behind which others.
struct Pass {
  schedule::Schedule schedule;
  std::vector<std::pair<std::int64_t, std::int64_t>> times;

  schedule::InstructionId add(schedule::Op op, schedule::Lane lane, std::int64_t begin_ms,
                              std::int64_t end_ms, std::vector<schedule::InstructionId> deps = {}) {
    schedule::Instruction instruction;
    instruction.id = static_cast<schedule::InstructionId>(schedule.instructions.size());
    instruction.op = op;
    instruction.lane = lane;
    instruction.deps = std::move(deps);
    schedule.instructions.push_back(instruction);
    times.emplace_back(begin_ms * kMs, end_ms * kMs);
    return instruction.id;
  }
  runtime::Stalls stalls(std::int64_t end_ms) const {
    return runtime::stalls_of_pass(schedule, times, 0, end_ms * kMs);
  }
};

double of(const runtime::Stalls& stalls, runtime::StallCause cause) {
  return stalls.by_cause_s[static_cast<std::size_t>(cause)] * 1e3;
}

TEST(StallCauses, ACopyThatWaitedForAReadCountsAsStorage) {
  Pass pass;
  const auto read = pass.add(schedule::Op::kStorageRead, schedule::Lane::kStorageRead, 0, 8);
  const auto upload = pass.add(schedule::Op::kUpload, schedule::Lane::kH2D, 8, 10, {read});
  pass.add(schedule::Op::kForward, schedule::Lane::kCompute, 11, 20, {upload});
  const runtime::Stalls stalls = pass.stalls(20);
  EXPECT_NEAR(of(stalls, runtime::StallCause::kStorageRead), 8, 1e-9);
  EXPECT_NEAR(of(stalls, runtime::StallCause::kUpload), 2, 1e-9);
  EXPECT_NEAR(of(stalls, runtime::StallCause::kHandOver), 1, 1e-9);
  EXPECT_NEAR(stalls.compute_s * 1e3, 9, 1e-9);
  EXPECT_NEAR(stalls.total_s() * 1e3, 11, 1e-9);
}

// Only while the compute lane stands still: a read behind other work costs nothing.
TEST(StallCauses, TransfersHiddenByComputeAreNoStall) {
  Pass pass;
  pass.add(schedule::Op::kForward, schedule::Lane::kCompute, 0, 6);
  const auto read = pass.add(schedule::Op::kStorageRead, schedule::Lane::kStorageRead, 0, 9);
  pass.add(schedule::Op::kForward, schedule::Lane::kCompute, 9, 10, {read});
  const runtime::Stalls stalls = pass.stalls(10);
  EXPECT_NEAR(of(stalls, runtime::StallCause::kStorageRead), 3, 1e-9);
  EXPECT_NEAR(stalls.total_s() * 1e3, 3, 1e-9);
}

// The lane submits in order, so a read waits for the cause of an earlier read's wait. A read into
// the memory of a finished write waited for that write.
TEST(StallCauses, AReadBehindAWaitingReadSharesItsCause) {
  Pass pass;
  const auto step = pass.add(schedule::Op::kOptimizerStep, schedule::Lane::kOptimizer, 0, 4);
  const auto write =
      pass.add(schedule::Op::kStorageWrite, schedule::Lane::kStorageWrite, 4, 7, {step});
  const auto release =
      pass.add(schedule::Op::kRelease, schedule::Lane::kStorageWrite, 0, 0, {write});
  pass.add(schedule::Op::kStorageRead, schedule::Lane::kStorageRead, 7, 20, {release});
  const auto read = pass.add(schedule::Op::kStorageRead, schedule::Lane::kStorageRead, 7, 9);
  pass.add(schedule::Op::kForward, schedule::Lane::kCompute, 9, 20, {read});
  const runtime::Stalls stalls = pass.stalls(20);
  EXPECT_NEAR(of(stalls, runtime::StallCause::kOptimizer), 4, 1e-9);
  EXPECT_NEAR(of(stalls, runtime::StallCause::kStorageWrite), 3, 1e-9);
  EXPECT_NEAR(of(stalls, runtime::StallCause::kStorageRead), 2, 1e-9);
  EXPECT_NEAR(stalls.total_s() * 1e3, 9, 1e-9);
}

// An instruction behind a Release in a lane waits for the cause of that Release's wait. A Release
// waits for the instruction before it. Neither ends the chain.
TEST(StallCauses, AReleaseWithoutDepsPassesOnTheCauseOfItsLane) {
  Pass pass;
  const auto read = pass.add(schedule::Op::kStorageRead, schedule::Lane::kStorageRead, 0, 5);
  pass.add(schedule::Op::kOptimizerStep, schedule::Lane::kOptimizer, 5, 7, {read});
  pass.add(schedule::Op::kRelease, schedule::Lane::kOptimizer, 0, 0);
  const auto second = pass.add(schedule::Op::kOptimizerStep, schedule::Lane::kOptimizer, 7, 9);
  pass.add(schedule::Op::kForward, schedule::Lane::kCompute, 9, 20, {second});
  const runtime::Stalls stalls = pass.stalls(20);
  EXPECT_NEAR(of(stalls, runtime::StallCause::kOptimizer), 4, 1e-9);
  EXPECT_NEAR(of(stalls, runtime::StallCause::kStorageRead), 5, 1e-9);
  EXPECT_NEAR(of(stalls, runtime::StallCause::kUnexplained), 0, 1e-9);
}

// Storage lanes tell others of their transfers in order: one that overtook counts as done once the
// one before it is.
TEST(StallCauses, ATransferThatOvertookWaitsForTheOneBeforeIt) {
  Pass pass;
  pass.add(schedule::Op::kStorageRead, schedule::Lane::kStorageRead, 0, 8);
  const auto overtook = pass.add(schedule::Op::kStorageRead, schedule::Lane::kStorageRead, 0, 3);
  pass.add(schedule::Op::kForward, schedule::Lane::kCompute, 8, 20, {overtook});
  const runtime::Stalls stalls = pass.stalls(20);
  EXPECT_NEAR(of(stalls, runtime::StallCause::kStorageRead), 8, 1e-9);
  EXPECT_NEAR(of(stalls, runtime::StallCause::kHandOver), 0, 1e-9);
}

// The pass first waits for the thread of a lane to begin.
TEST(StallCauses, TheWaitUntilALaneBeginsIsHandOver) {
  Pass pass;
  pass.add(schedule::Op::kRelease, schedule::Lane::kStorageRead, 0, 0);
  const auto read = pass.add(schedule::Op::kStorageRead, schedule::Lane::kStorageRead, 3, 5);
  pass.add(schedule::Op::kForward, schedule::Lane::kCompute, 6, 10, {read});
  const runtime::Stalls stalls = pass.stalls(10);
  EXPECT_NEAR(of(stalls, runtime::StallCause::kHandOver), 4, 1e-9);
  EXPECT_NEAR(of(stalls, runtime::StallCause::kStorageRead), 2, 1e-9);
}

// A lane that had begun, and an instruction of it that waited for nothing and came late.
TEST(StallCauses, TimeThatNoInstructionCausesIsUnexplained) {
  Pass pass;
  pass.add(schedule::Op::kStorageRead, schedule::Lane::kStorageRead, 0, 1);
  const auto read = pass.add(schedule::Op::kStorageRead, schedule::Lane::kStorageRead, 3, 5);
  pass.add(schedule::Op::kForward, schedule::Lane::kCompute, 6, 10, {read});
  const runtime::Stalls stalls = pass.stalls(10);
  EXPECT_NEAR(of(stalls, runtime::StallCause::kUnexplained), 3, 1e-9);
  EXPECT_NEAR(of(stalls, runtime::StallCause::kStorageRead), 2, 1e-9);
  EXPECT_NEAR(of(stalls, runtime::StallCause::kHandOver), 1, 1e-9);
}

TEST(StallCauses, TheTailOfAPassIsThatOfItsLastLane) {
  Pass pass;
  pass.add(schedule::Op::kForward, schedule::Lane::kCompute, 0, 5);
  const auto step = pass.add(schedule::Op::kOptimizerStep, schedule::Lane::kOptimizer, 5, 9);
  pass.add(schedule::Op::kStorageWrite, schedule::Lane::kStorageWrite, 9, 12, {step});
  const runtime::Stalls stalls = pass.stalls(12);
  EXPECT_NEAR(of(stalls, runtime::StallCause::kOptimizer), 4, 1e-9);
  EXPECT_NEAR(of(stalls, runtime::StallCause::kStorageWrite), 3, 1e-9);
}

TEST(StallCauses, AddUpToTheTimeOfAStepBeyondItsCompute) {
  const TempDirectory directory;
  const std::array<std::string, 1> paths{"memory.storage_paths=['" + directory.path().string() +
                                         "']"};
  const config::Config config = config::parse_config(R"(
[model]
family = "gpt2"
layers = 3
hidden = 64
heads = 2
vocab = 64
[data]
paths = ["."]
[train]
seq = 32
micro_batch = 2
[memory]
backend = "host"
device = "256MiB"
pinned = "256MiB"
storage = "256MiB"
place.weight = "storage"
place.gradient = "storage"
place.optimizer = "storage"
)",
                                                     "test", paths);
  PlannedSession run(config);
  run.step(0);
  TraceRecorder trace;
  const train::StepOutcome outcome = run.session().train_step(
      1, 1e-2,
      [&](std::int64_t mb, std::int32_t* tokens, std::int32_t* targets) {
        run.fill_tokens(mb, tokens, targets);
      },
      &trace);
  ASSERT_TRUE(outcome.stalls.has_value());
  const double beyond = outcome.seconds - outcome.stalls->compute_s;
  EXPECT_GT(beyond, 0);
  EXPECT_NEAR(outcome.stalls->total_s(), beyond, 0.01 * outcome.seconds);
  EXPECT_GT(of(*outcome.stalls, runtime::StallCause::kStorageRead), 0);
  EXPECT_FALSE(run.step(2).stalls.has_value());
}

}  // namespace
}  // namespace sluice::testing
