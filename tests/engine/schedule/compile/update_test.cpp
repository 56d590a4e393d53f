// Orders of passes and places of the update: the same terms over several steps, whatever state is
// carried over their borders; and the transfers that fetch that state.
#include <gtest/gtest.h>

#include "engine/schedule/check/interpret.hpp"
#include "engine/schedule/check/validate.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/step_chain.hpp"
#include "tests/support/step_examples.hpp"
#include "tests/support/sweep.hpp"

namespace sluice::schedule {
namespace {

using namespace testing;

constexpr std::uint64_t kSteps = 3;

void run_after_backward(StepChain& run, const StepModel& model, StepOptions options) {
  options.update = UpdatePlacement::kAfterBackward;
  const Schedule schedule = compile(model, options, StepKind::kTraining);
  for (std::uint64_t step = 0; step < kSteps; ++step) run.pass(schedule, step);
}

void run_next_forward(StepChain& run, const StepModel& model, StepOptions options) {
  options.update = UpdatePlacement::kNextForward;
  const Schedule steady = compile(model, options, StepKind::kTraining);
  run.pass(compile(model, options, StepKind::kFirst), 0);
  for (std::uint64_t step = 1; step < kSteps; ++step) run.pass(steady, step);
  run.pass(compile(model, options, StepKind::kDrain), kSteps);
}

TEST(NextForward, CarriesUpdatesOverTheBordersOfStepsToTheSameTerms) {
  for (std::uint64_t seed = 0; seed < sweep(42); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const StepModel model = drawn_model(seed);
    const auto microbatches = static_cast<std::int32_t>(1 + seed % 3);
    StepChain plain;
    run_after_backward(plain, model, resident_options(model, microbatches));
    if (HasFatalFailure()) return;
    ASSERT_EQ(plain.norms.size(), kSteps);
    EXPECT_NE(plain.norms[0], plain.norms[1]);
    const StepOptions options = random_options(model, microbatches, seed);
    for (const InterpretOptions& timing : adverse_timings(seed, 1)) {
      StepChain carried(timing);
      run_next_forward(carried, model, options);
      if (HasFatalFailure()) return;
      ASSERT_EQ(carried.norms, plain.norms);
      ASSERT_EQ(carried.losses, plain.losses);
      ASSERT_EQ(carried.exit, plain.exit);
    }
  }
}

// Wherever the update is, a step moves the bytes of one with its update after its backward pass.
// So do a first step and a drain together. The redo of a speculative step moves one update's bytes.
TEST(UpdatePlacement, MovesTheSameBytes) {
  for (std::uint64_t seed = 0; seed < sweep(20); ++seed) {
    const StepModel model = example_model(2, seed % 2 == 0, DType::kBF16);
    StepOptions options = random_options(model, 2, seed);
    const auto moved = [&](UpdatePlacement update, StepKind kind) {
      options.update = update;
      return link_bytes(compile(model, options, kind));
    };
    const LinkBytes after = moved(UpdatePlacement::kAfterBackward, StepKind::kTraining);
    EXPECT_EQ(moved(UpdatePlacement::kNextForward, StepKind::kTraining), after);
    EXPECT_EQ(moved(UpdatePlacement::kSpeculative, StepKind::kTraining), after);
    const LinkBytes drain = moved(UpdatePlacement::kNextForward, StepKind::kDrain);
    EXPECT_EQ(moved(UpdatePlacement::kSpeculative, StepKind::kRedo), drain);
    LinkBytes both = moved(UpdatePlacement::kNextForward, StepKind::kFirst);
    both += drain;
    EXPECT_EQ(both, after);
  }
}

class SteadyRules : public ::testing::Test {
 protected:
  SteadyRules() {
    const StepModel model = example_model(2, false, DType::kBF16);
    StepOptions options = example_options(model, Tier::kPinned, Tier::kPinned, Tier::kPinned);
    options.update = UpdatePlacement::kNextForward;
    schedule_ = compile(model, options, StepKind::kTraining);
  }
  std::string verdict() const { return joined(validate(schedule_)); }
  void expect_refused(const std::string& words) const { EXPECT_TRUE(holds(verdict(), words)); }
  InstructionId last_fetch_for_forward(std::int32_t unit) const {
    InstructionId last = kNoId;
    for (const Instruction& instruction : schedule_.instructions) {
      if (instruction.unit != unit) continue;
      if (instruction.op == Op::kUpload) last = instruction.id;
      if (instruction.op == Op::kForward) break;
    }
    return last;
  }

  Schedule schedule_;
};

// The updates of unit 1 moved after the fetch of its weights; deps and places are made anew.
TEST_F(SteadyRules, AFetchAheadOfTheUnitsUpdateIsRefused) {
  ASSERT_EQ(verdict(), "");
  const InstructionId fetch = last_fetch_for_forward(1);
  std::vector<Instruction> list;
  std::vector<Instruction> updates;
  for (const Instruction& instruction : schedule_.instructions) {
    const bool update = instruction.op == Op::kOptimizerStep && instruction.unit == 1;
    ASSERT_FALSE(update && instruction.id > fetch);
    (update ? updates : list).push_back(instruction);
    if (instruction.id == fetch) list.insert(list.end(), updates.begin(), updates.end());
  }
  ASSERT_FALSE(updates.empty());
  schedule_.instructions = list;
  relink(schedule_);
  expect_refused("reads version 0 of");
}

TEST_F(SteadyRules, APendingGradientIsForTheNextVersion) {
  for (Residency& residency : schedule_.entry) {
    if (residency.kind == StateKind::kGradient) residency.version = 2;
  }
  expect_refused("applies a gradient for version 2 to version 0");
}

// Without the norm and the clip factor, which nothing else in the step would miss.
TEST_F(SteadyRules, AnUpdateLeftForTheNextStepHasItsNorm) {
  std::erase_if(schedule_.instructions, [](const Instruction& instruction) {
    return instruction.op == Op::kGradNorm || instruction.op == Op::kClipFactor;
  });
  relink(schedule_);
  expect_refused("is left for a later update without its norm");
}

// --- order ---------------------------------------------------------------------------------------

TEST(UnitOrder, FetchesWeightsAndStoresSumsOnceWhateverTheMicrobatches) {
  for (const bool tied : {false, true}) {
    const StepModel model = example_model(3, tied, DType::kBF16);
    StepOptions options = example_options(model, Tier::kStorage, Tier::kStorage, Tier::kStorage);
    options.order = ComputeOrder::kUnit;
    std::vector<LinkBytes> moved;
    for (const std::int32_t microbatches : {1, 2, 4, 8}) {
      options.microbatches = microbatches;
      moved.push_back(link_bytes(compile(model, options, StepKind::kTraining)));
      moved.back().upload -= static_cast<std::uint64_t>(microbatches) * model.token_bytes;
    }
    for (const LinkBytes& more : moved) EXPECT_EQ(more.upload, moved[0].upload);
    // One micro-batch's gradient is not summed: it is stored in 16 bits.
    for (std::size_t i = 2; i < moved.size(); ++i) {
      EXPECT_EQ(moved[i].storage_read, moved[1].storage_read);
      EXPECT_EQ(moved[i].storage_write, moved[1].storage_write);
    }
    options.order = ComputeOrder::kMicrobatch;
    EXPECT_GT(link_bytes(compile(model, options, StepKind::kTraining)).upload, 5 * moved[0].upload);
  }
}

// With recomputation only the outputs of units are kept: device memory grows by these alone.
TEST(UnitOrder, KeepsUnitOutputsWhereTheRestIsRecomputed) {
  const int blocks = 6;
  const StepModel model = example_model(blocks, false, DType::kBF16);
  StepOptions options = example_options(model, Tier::kPinned, Tier::kPinned, Tier::kPinned);
  options.recompute = recompute_units(model);
  options.order = ComputeOrder::kUnit;
  options.microbatches = 8;
  const std::uint64_t few = compile(model, options, StepKind::kTraining).device_arena_bytes;
  options.microbatches = 16;
  const std::uint64_t many = compile(model, options, StepKind::kTraining).device_arena_bytes;
  const std::uint64_t kept = (blocks + 1) * model.units[0].output_bytes + model.token_bytes;
  // At the head half of the outputs' gradients are there too, at most one a micro-batch.
  EXPECT_LE(many - few, 8 * (kept + model.units[0].output_bytes + model.token_bytes));
  EXPECT_GE(many - few, 8 * kept);
}

}  // namespace
}  // namespace sluice::schedule
