#include "engine/runtime/stall_causes.hpp"

#include <gtest/gtest.h>

#include "tests/support/planned_session.hpp"
#include "tests/support/temp_directory.hpp"

namespace sluice::testing {
namespace {

using runtime::StallCause;
using schedule::Lane;
using schedule::Op;

double of(const runtime::Stalls& stalls, StallCause cause) {
  return stalls.by_cause_s[static_cast<std::size_t>(cause)] * 1e3;
}

// A pass made by hand, in milliseconds: when each instruction ran, on which lane, and after which
// others.
struct Instruction {
  Op op;
  Lane lane;
  std::int64_t begin_ms, end_ms;
  std::vector<schedule::InstructionId> deps = {};
};
struct Pass {
  const char* name;
  std::int64_t end_ms;
  std::vector<Instruction> instructions;
  std::vector<std::pair<StallCause, double>> stalls_ms;  // of all others: none
};

class StallsOfAPass : public ::testing::TestWithParam<Pass> {};

TEST_P(StallsOfAPass, HaveTheirCauses) {
  constexpr std::int64_t kMs = 1'000'000;
  schedule::Schedule schedule;
  std::vector<std::pair<std::int64_t, std::int64_t>> times;
  for (const Instruction& given : GetParam().instructions) {
    schedule::Instruction instruction;
    instruction.id = static_cast<schedule::InstructionId>(schedule.instructions.size());
    instruction.op = given.op;
    instruction.lane = given.lane;
    instruction.deps = given.deps;
    schedule.instructions.push_back(instruction);
    times.emplace_back(given.begin_ms * kMs, given.end_ms * kMs);
  }
  const runtime::Stalls stalls =
      runtime::stalls_of_pass(schedule, times, 0, GetParam().end_ms * kMs);
  runtime::Stalls expected;
  for (const auto& [cause, ms] : GetParam().stalls_ms) expected.add(cause, ms * 1e-3);
  for (std::size_t cause = 0; cause < stalls.by_cause_s.size(); ++cause) {
    EXPECT_NEAR(stalls.by_cause_s[cause], expected.by_cause_s[cause], 1e-12) << "cause " << cause;
  }
  const auto end_s = static_cast<double>(GetParam().end_ms) * 1e-3;
  EXPECT_NEAR(stalls.compute_s, end_s - expected.total_s(), 1e-12);
  EXPECT_NEAR(stalls.total_s(), expected.total_s(), 1e-12);
}

const Pass kPasses[] = {
    {"ACopyThatWaitedForAReadCountsAsStorage",
     20,
     {{Op::kStorageRead, Lane::kStorageRead, 0, 8},
      {Op::kUpload, Lane::kH2D, 8, 10, {0}},
      {Op::kForward, Lane::kCompute, 11, 20, {1}}},
     {{StallCause::kStorageRead, 8}, {StallCause::kUpload, 2}, {StallCause::kHandOver, 1}}},
    // Only while the compute lane stands still: a read after other work costs nothing.
    {"TransfersHiddenByComputeAreNoStall",
     10,
     {{Op::kForward, Lane::kCompute, 0, 6},
      {Op::kStorageRead, Lane::kStorageRead, 0, 9},
      {Op::kForward, Lane::kCompute, 9, 10, {1}}},
     {{StallCause::kStorageRead, 3}}},
    // The lane submits in order, so a read waits for the cause of an earlier read's wait. A read
    // into the memory of a finished write waited for that write.
    {"AReadBehindAWaitingReadSharesItsCause",
     20,
     {{Op::kOptimizerStep, Lane::kOptimizer, 0, 4},
      {Op::kStorageWrite, Lane::kStorageWrite, 4, 7, {0}},
      {Op::kRelease, Lane::kStorageWrite, 0, 0, {1}},
      {Op::kStorageRead, Lane::kStorageRead, 7, 20, {2}},
      {Op::kStorageRead, Lane::kStorageRead, 7, 9},
      {Op::kForward, Lane::kCompute, 9, 20, {4}}},
     {{StallCause::kOptimizer, 4}, {StallCause::kStorageWrite, 3}, {StallCause::kStorageRead, 2}}},
    // An instruction after a Release in a lane waits for the cause of that Release's wait. A
    // Release waits for the instruction before it. Neither ends the chain.
    {"AReleaseWithoutDepsPassesOnTheCauseOfItsLane",
     20,
     {{Op::kStorageRead, Lane::kStorageRead, 0, 5},
      {Op::kOptimizerStep, Lane::kOptimizer, 5, 7, {0}},
      {Op::kRelease, Lane::kOptimizer, 0, 0},
      {Op::kOptimizerStep, Lane::kOptimizer, 7, 9},
      {Op::kForward, Lane::kCompute, 9, 20, {3}}},
     {{StallCause::kOptimizer, 4}, {StallCause::kStorageRead, 5}}},
    // Storage lanes tell others of their transfers in order: one that overtook counts as done once
    // the one before it is.
    {"ATransferThatOvertookWaitsForTheOneBeforeIt",
     20,
     {{Op::kStorageRead, Lane::kStorageRead, 0, 8},
      {Op::kStorageRead, Lane::kStorageRead, 0, 3},
      {Op::kForward, Lane::kCompute, 8, 20, {1}}},
     {{StallCause::kStorageRead, 8}}},
    // The pass first waits for the thread of a lane to begin.
    {"TheWaitUntilALaneBeginsIsHandOver",
     10,
     {{Op::kRelease, Lane::kStorageRead, 0, 0},
      {Op::kStorageRead, Lane::kStorageRead, 3, 5},
      {Op::kForward, Lane::kCompute, 6, 10, {1}}},
     {{StallCause::kHandOver, 4}, {StallCause::kStorageRead, 2}}},
    // A lane that had begun, and an instruction of it that waited for nothing and came late.
    {"TimeThatNoInstructionCausesIsUnexplained",
     10,
     {{Op::kStorageRead, Lane::kStorageRead, 0, 1},
      {Op::kStorageRead, Lane::kStorageRead, 3, 5},
      {Op::kForward, Lane::kCompute, 6, 10, {1}}},
     {{StallCause::kUnexplained, 3}, {StallCause::kStorageRead, 2}, {StallCause::kHandOver, 1}}},
    {"TheTailOfAPassIsThatOfItsLastLane",
     12,
     {{Op::kForward, Lane::kCompute, 0, 5},
      {Op::kOptimizerStep, Lane::kOptimizer, 5, 9},
      {Op::kStorageWrite, Lane::kStorageWrite, 9, 12, {1}}},
     {{StallCause::kOptimizer, 4}, {StallCause::kStorageWrite, 3}}},
};
INSTANTIATE_TEST_SUITE_P(All, StallsOfAPass, ::testing::ValuesIn(kPasses),
                         [](const auto& pass) { return pass.param.name; });

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
  EXPECT_GT(of(*outcome.stalls, StallCause::kStorageRead), 0);
  EXPECT_FALSE(run.step(2).stalls.has_value());
}

}  // namespace
}  // namespace sluice::testing
