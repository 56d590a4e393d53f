// Steps of a durable run: they compute the same as the plain step, and commit the state at
// their entry.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/schedule/check/interpret.hpp"
#include "engine/schedule/check/validate.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/rank_world.hpp"
#include "tests/support/step_chain.hpp"
#include "tests/support/step_examples.hpp"
#include "tests/support/sweep.hpp"

namespace sluice::schedule {
namespace {

using namespace testing;

StepOptions durable(StepOptions options) {
  options.durable = true;
  return options;
}

StepOptions random_durable(const StepModel& model, std::uint64_t seed) {
  return durable(random_options(model, 1 + static_cast<int>(seed % 3), seed));
}

// State as a step finds it, in any buffer that holds it.
auto state_at_entry(const StepModel& model) {
  const StepOptions options =
      durable(example_options(model, Tier::kStorage, Tier::kStorage, Tier::kStorage));
  return interpret(compile(model, options, StepKind::kEvaluation)).exit;
}

// The saving step computes the same as `plain` and commits its entry state. Counts the timings.
void expect_commits(const StepModel& model, const StepOptions& options, const Interpretation& plain,
                    std::uint64_t seed, std::size_t& timings) {
  const Schedule schedule = compile(model, options, StepKind::kSaving);
  ASSERT_EQ(joined(validate(schedule)), "");
  for (const InterpretOptions& timing : adverse_timings(seed, 2)) {
    const Interpretation values = interpret(schedule, timing);
    ASSERT_EQ(joined(values.errors), "");
    ASSERT_EQ(values.committed, state_at_entry(model));
    ASSERT_EQ(values.exit, plain.exit);
    ASSERT_EQ(values.losses, plain.losses);
    ASSERT_EQ(values.norm, plain.norm);
    ++timings;
  }
}

TEST(SavingStep, ComputesThePlainStepAndCommitsItsEntryStateInAnyTiming) {
  std::size_t timings = 0;
  for (std::uint64_t seed = 0; seed < sweep(42); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const StepModel model = drawn_model(seed);
    const StepOptions options = random_durable(model, seed);
    const Interpretation plain = interpret(
        compile(model, resident_options(model, options.microbatches), StepKind::kTraining));
    ASSERT_NO_FATAL_FAILURE(expect_commits(model, options, plain, seed, timings));
  }
  EXPECT_GT(timings, sweep(500));
}

// Updates in the backward pass come after the Commit; one in the next forward pass is not of this
// step, and none is pending where it begins.
TEST(SavingStep, CommitsItsEntryStateWhereverUpdatesAreMade) {
  std::size_t timings = 0;
  for (std::uint64_t seed = 0; seed < sweep(24); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const StepModel model =
        example_model(2, seed % 2 == 1, seed % 3 == 0 ? DType::kF32 : DType::kBF16);
    StepOptions options = random_durable(model, seed);
    const bool carries = seed % 4 < 2;
    options.update = carries ? UpdatePlacement::kNextForward : UpdatePlacement::kInBackward;
    const Interpretation plain = interpret(compile(model, options, StepKind::kFirst));
    ASSERT_NO_FATAL_FAILURE(expect_commits(model, options, plain, seed, timings));
  }
  EXPECT_GT(timings, sweep(200));
}

TEST(SavingStep, ASaveBetweenStepsCommitsTheSameState) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const StepModel model = example_model(2, true, DType::kBF16);
    const Schedule save = compile(model, random_durable(model, seed), StepKind::kSave);
    ASSERT_EQ(joined(validate(save)), "");
    EXPECT_EQ(interpret(save).committed, state_at_entry(model));
  }
}

// Updates in the backward pass lag behind the exchanges of their gradients, and the Commit with
// them. It follows the last piece of state all the same. Ranks whose shards of these small units
// are empty commit too, since all ranks wait for each other.
TEST(SavingStep, OfSeveralRanksCommitsBeforeTheFirstUpdate) {
  for (std::uint64_t seed = 0; seed < sweep(32); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const StepModel model = example_model(1 + static_cast<int>(seed % 2), seed % 4 < 2,
                                          seed % 3 == 0 ? DType::kF32 : DType::kBF16);
    const auto ranks = static_cast<std::int32_t>(2 + seed % 3);
    const auto stage = static_cast<std::int32_t>(seed / 3 % 4);
    StepOptions options = durable(random_options(model, ranks, seed));
    options.recompute = {};
    options.update = UpdatePlacement::kInBackward;
    options.carried_units = 0;
    options.exchange_lag = static_cast<std::int32_t>(seed % 5);
    place_for_stage(options.placement, stage);
    for (const StepKind kind : {StepKind::kSaving, StepKind::kSave}) {
      EXPECT_EQ(joined(validate(world_of(model, options, kind, ranks, stage))), "");
    }
  }
}

// The exact bytes of the two versions and the log: pages for both copies of every home.
TEST(SavingStep, StorageHoldsTwoVersionsOfAllStateAndOneOfTheRest) {
  const StepModel model = example_model(2, false, DType::kBF16);
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const StepOptions options = random_durable(model, seed);
    const Schedule schedule = compile(model, options, StepKind::kTraining);
    std::uint64_t expected = 0;
    for (const Buffer& buffer : schedule.buffers) {
      if (!buffer.persistent || buffer.tier != Tier::kStorage) continue;
      const bool gradient = buffer.kind == StateKind::kGradient;
      EXPECT_EQ(buffer.versions, gradient ? 1 : 2);
      expected += (gradient ? 1 : 2) * round_up(buffer.bytes, kDirectAlignmentBytes);
    }
    EXPECT_GE(schedule.peak_bytes[2], expected);
    EXPECT_EQ(compile(model, options, StepKind::kSaving).peak_bytes[2], schedule.peak_bytes[2]);
  }
}

// Each is one edit away from a schedule that validates.
class DamagedCommit : public ::testing::Test {
 protected:
  DamagedCommit() : model_(example_model(1, false, DType::kBF16)) {
    schedule_ = compile(
        model_, durable(example_options(model_, Tier::kPinned, Tier::kPinned, Tier::kStorage)),
        StepKind::kSaving);
  }
  Instruction& commit() {
    return *std::find_if(schedule_.instructions.begin(), schedule_.instructions.end(),
                         [](const Instruction& i) { return i.op == Op::kCommit; });
  }
  void expect_refused(const std::string& words) const {
    EXPECT_TRUE(holds(joined(validate(schedule_)), words));
  }
  StepModel model_;
  Schedule schedule_;
};

TEST_F(DamagedCommit, OneThatLeavesOutAHomeIsRefused) {
  commit().reads.pop_back();
  expect_refused("leaves out");
}

TEST_F(DamagedCommit, OneOfPartOfAHomeIsRefused) {
  commit().reads.back().bytes = 4096;
  expect_refused("as it is declared to be committed");
}

TEST_F(DamagedCommit, ADeclarationThatForgetsStateIsRefused) {
  schedule_.commit.pop_back();
  expect_refused("not the state that the schedule finds");
}

TEST_F(DamagedCommit, OneThatIsMissingIsRefused) {
  Instruction& gone = commit();
  gone.op = Op::kRelease;
  gone.reads.clear();
  expect_refused("declared to be committed");
}

// The first write of new state must find the other copy free, so it waits for the Commit.
TEST_F(DamagedCommit, AWriteOfNewStateThatMayPassItIsRefused) {
  const InstructionId id = commit().id;
  bool waits = false;
  for (Instruction& instruction : schedule_.instructions) {
    waits = erase(instruction.deps, id) > 0 || waits;
  }
  EXPECT_TRUE(waits);
  EXPECT_NE(joined(validate(schedule_)), "");
}

}  // namespace
}  // namespace sluice::schedule
