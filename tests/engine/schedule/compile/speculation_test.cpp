// Updates that are made in the backward pass as if the clip factor were one: the terms of the plain
// order, whether each step's update stands, is made once more, or is given up.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/schedule/check/interpret.hpp"
#include "engine/schedule/check/validate.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/step_chain.hpp"
#include "tests/support/step_examples.hpp"
#include "tests/support/sweep.hpp"

namespace sluice::schedule {
namespace {

using namespace testing;

StepOptions speculative(StepOptions options) {
  options.update = UpdatePlacement::kSpeculative;
  return options;
}

// The fate of each step of a run.
using Verdicts = std::vector<bool>;  // accepted, or redone

Verdicts verdicts(std::uint64_t seed) {
  Verdicts drawn;
  for (std::uint64_t step = 0; step < 4; ++step) drawn.push_back(((seed + 5) >> step) % 2 == 0);
  return drawn;
}

void run_plain(StepChain& run, const StepModel& model, StepOptions options, const Verdicts& steps) {
  options.update = UpdatePlacement::kAfterBackward;
  const Schedule schedule = compile(model, options, StepKind::kTraining);
  for (std::size_t step = 0; step < steps.size(); ++step) run.pass(schedule, step, steps[step]);
}

void run_speculative(StepChain& run, const StepModel& model, const StepOptions& options,
                     const Verdicts& steps) {
  const Schedule step_schedule = compile(model, speculative(options), StepKind::kTraining);
  const Schedule redo = compile(model, speculative(options), StepKind::kRedo);
  for (std::size_t step = 0; step < steps.size(); ++step) {
    run.pass(step_schedule, step, steps[step]);
    if (::testing::Test::HasFatalFailure()) return;
    if (steps[step]) continue;
    run.give_up();
    run.pass(redo, step);
  }
}

TEST(Speculation, MakesTheSameTermsWhateverStandsAndWhateverIsRedone) {
  for (std::uint64_t seed = 0; seed < sweep(42); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const StepModel model = drawn_model(seed);
    const auto microbatches = static_cast<std::int32_t>(1 + seed % 3);
    const Verdicts steps = verdicts(seed);
    StepChain plain;
    run_plain(plain, model, resident_options(model, microbatches), steps);
    if (HasFatalFailure()) return;
    const StepOptions options = random_options(model, microbatches, seed);
    for (const InterpretOptions& timing : adverse_timings(seed, 1)) {
      StepChain run(timing);
      run_speculative(run, model, options, steps);
      if (HasFatalFailure()) return;
      ASSERT_EQ(run.norms, plain.norms);
      ASSERT_EQ(run.losses, plain.losses);
      ASSERT_EQ(without_gradients(run.exit), plain.exit);
    }
  }
}

// The test above could not fail if the verdict made no difference.
TEST(Speculation, AnUpdateThatStandsWhereItShouldNotIsAnotherTerm) {
  const StepModel model = example_model(1, true, DType::kBF16);
  const StepOptions options = example_options(model, Tier::kPinned, Tier::kPinned, Tier::kStorage);
  StepChain plain;
  run_plain(plain, model, options, {false, true});
  StepChain careless;
  const Schedule schedule = compile(model, speculative(options), StepKind::kTraining);
  careless.pass(schedule, 0, false);
  careless.pass(schedule, 1, true);
  EXPECT_EQ(careless.norms.front(), plain.norms.front());
  EXPECT_NE(careless.norms.back(), plain.norms.back());
  EXPECT_NE(without_gradients(careless.exit), plain.exit);
}

// fp16: a step that overflows is neither kept nor redone.
TEST(Speculation, AnAbandonedStepLeavesItsEntryState) {
  const StepModel model = example_model(2, true, DType::kF16);
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const StepOptions options = speculative(random_options(model, 2, seed));
    const Schedule schedule = compile(model, options, StepKind::kTraining);
    StepChain skipping;
    skipping.pass(schedule, 0, true);
    const StepChain::State before = skipping.exit;
    skipping.pass(schedule, 1);
    ASSERT_FALSE(skipping.found.empty());
    for (const auto& [home, term] : skipping.found) EXPECT_EQ(term, before.at(home));
    skipping.give_up();
    skipping.pass(schedule, 2, true);
    StepChain without;
    without.pass(schedule, 0, true);
    without.pass(schedule, 2, true);
    ASSERT_FALSE(HasFatalFailure());
    EXPECT_EQ(skipping.exit, without.exit);
    EXPECT_EQ(skipping.losses.back(), without.losses.back());
  }
}

// Every home of state that updates make is there twice, and the plan's peak counts both.
TEST(Speculation, HasTwoHomesForAllStateThatUpdatesMake) {
  const StepModel model = example_model(2, false, DType::kBF16);
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const StepOptions options = speculative(random_options(model, 2, seed));
    const Schedule schedule = compile(model, options, StepKind::kTraining);
    std::vector<int> homes(schedule.buffers.size());
    std::array<std::uint64_t, kTierCount> held{};
    for (const Buffer& buffer : schedule.buffers) {
      if (!buffer.persistent || buffer.role != BufferRole::kState) continue;
      held[static_cast<std::size_t>(buffer.tier)] += buffer.bytes;
      if (buffer.shadow_of != kNoId) ++homes[buffer.shadow_of];
    }
    for (const Residency& residency : schedule.entry) EXPECT_EQ(homes[residency.home], 1);
    for (std::size_t tier = 0; tier < kTierCount; ++tier) {
      EXPECT_GE(schedule.peak_bytes[tier], held[tier]);
    }
  }
}

// --- validate refuses each of these: they are one edit away from a schedule that it accepts ------

class DamagedSpeculation : public ::testing::Test {
 protected:
  DamagedSpeculation() : model_(example_model(1, false, DType::kBF16)) {
    options_ = speculative(example_options(model_, Tier::kPinned, Tier::kPinned, Tier::kPinned));
    schedule_ = compile(model_, options_, StepKind::kTraining);
  }
  // The shadow of a master: updates read it, too.
  Buffer& shadow() {
    return *std::find_if(schedule_.buffers.begin(), schedule_.buffers.end(), [](const Buffer& at) {
      return at.shadow_of != kNoId && at.kind == StateKind::kMaster;
    });
  }
  std::string verdict() const { return joined(validate(schedule_)); }
  void expect_refused(const std::string& words) const { EXPECT_TRUE(holds(verdict(), words)); }

  StepModel model_;
  StepOptions options_;
  Schedule schedule_;
};

TEST_F(DamagedSpeculation, AnUpdateOverTheEntryStateIsRefused) {
  ASSERT_EQ(verdict(), "");
  for (Instruction& instruction : schedule_.instructions) {
    if (instruction.op != Op::kOptimizerStep) continue;
    for (Use& use : instruction.writes) {
      const BufferId home = schedule_.buffers[use.buffer].shadow_of;
      if (home != kNoId) use.buffer = home;
    }
    break;
  }
  relink(schedule_);
  expect_refused("ends");
}

TEST_F(DamagedSpeculation, AStepThatLeavesNoGradientForARedoIsRefused) {
  std::erase_if(schedule_.instructions,
                [](const Instruction& i) { return i.op == Op::kClipFactor; });
  relink(schedule_);
  expect_refused("is left for a later update without its clip factor");
}

TEST_F(DamagedSpeculation, AShadowOfAnotherShapeIsRefused) {
  shadow().bytes += kDirectAlignmentBytes;
  expect_refused("is not a shadow of the home that it names");
}

TEST_F(DamagedSpeculation, AScheduleThatFindsStateInAShadowIsRefused) {
  schedule_.entry.front().home = shadow().id;
  schedule_.entry.front().kind = shadow().kind;
  schedule_.entry.front().unit = shadow().unit;
  expect_refused("is a shadow: what a schedule finds is in the other home");
}

TEST_F(DamagedSpeculation, ARedoThatReadsTheStepsResultIsRefused) {
  schedule_ = compile(model_, options_, StepKind::kRedo);
  ASSERT_EQ(verdict(), "");
  const BufferId home = shadow().shadow_of;
  for (Instruction& instruction : schedule_.instructions) {
    for (Use& use : instruction.reads) {
      if (use.buffer == home) use.buffer = shadow().id;
    }
  }
  relink(schedule_);
  expect_refused("before it is written");
}

}  // namespace
}  // namespace sluice::schedule
