// Orders of passes and places of the update: the same terms over several steps, whatever state is
// carried over their borders; and the transfers that fetch that state.
#include <gtest/gtest.h>

#include "engine/schedule/check/interpret.hpp"
#include "engine/schedule/check/validate.hpp"
#include "engine/schedule/compile/link.hpp"
#include "engine/schedule/compile/pack.hpp"
#include "tests/support/step_chain.hpp"
#include "tests/support/step_examples.hpp"

namespace sluice::schedule {
namespace {

using testing::example_model;
using testing::example_options;
using testing::joined;
using testing::random_options;
using testing::StepChain;

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
  const std::vector<kernels::OptimizerOptions> optimizers = testing::example_optimizers();
  for (std::uint64_t seed = 0; seed < 42; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const DType dtype = seed % 4 == 3 ? DType::kF32 : DType::kBF16;
    const StepModel model =
        example_model(2, seed % 2 == 0, dtype, optimizers[seed % optimizers.size()]);
    const auto microbatches = static_cast<std::int32_t>(1 + seed % 3);
    StepOptions resident = example_options(model, Tier::kDevice, Tier::kDevice, Tier::kDevice);
    resident.microbatches = microbatches;
    StepChain plain;
    run_after_backward(plain, model, resident);
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

// A run that evaluates in between drains, and begins again with a first step.
TEST(NextForward, DrainsAnywhere) {
  const StepModel model = example_model(2, true, DType::kBF16);
  StepOptions options = example_options(model, Tier::kPinned, Tier::kPinned, Tier::kStorage);
  StepChain plain;
  run_after_backward(plain, model, options);
  options.update = UpdatePlacement::kNextForward;
  const Schedule first = compile(model, options, StepKind::kFirst);
  const Schedule drain = compile(model, options, StepKind::kDrain);
  StepChain drained;
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    drained.pass(first, step);
    drained.pass(drain, step);
  }
  EXPECT_EQ(drained.norms, plain.norms);
  EXPECT_EQ(drained.losses, plain.losses);
  EXPECT_EQ(drained.exit, plain.exit);
}

// A first step and a drain together move the bytes of a steady step. So does a step that has its
// update behind its backward pass.
TEST(NextForward, MovesTheSameBytes) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const StepModel model = example_model(2, seed % 2 == 0, DType::kBF16);
    StepOptions options = random_options(model, 2, seed);
    const LinkBytes after = link_bytes(compile(model, options, StepKind::kTraining));
    options.update = UpdatePlacement::kNextForward;
    EXPECT_EQ(link_bytes(compile(model, options, StepKind::kTraining)), after);
    const LinkBytes first = link_bytes(compile(model, options, StepKind::kFirst));
    const LinkBytes drain = link_bytes(compile(model, options, StepKind::kDrain));
    EXPECT_EQ((LinkBytes{first.upload + drain.upload, first.download + drain.download,
                         first.storage_read + drain.storage_read,
                         first.storage_write + drain.storage_write}),
              after);
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

// The updates of unit 1 moved behind the fetch of its weights; deps and places are made anew.
TEST_F(SteadyRules, AFetchAheadOfTheUnitsUpdateIsRefused) {
  ASSERT_EQ(verdict(), "");
  const InstructionId fetch = last_fetch_for_forward(1);
  std::vector<Instruction> list;
  std::vector<Instruction> updates;
  for (Instruction instruction : schedule_.instructions) {
    const bool update = instruction.op == Op::kOptimizerStep && instruction.unit == 1;
    ASSERT_FALSE(update && instruction.id > fetch);
    instruction.deps.clear();
    (update ? updates : list).push_back(instruction);
    if (instruction.id == fetch) list.insert(list.end(), updates.begin(), updates.end());
  }
  ASSERT_FALSE(updates.empty());
  schedule_.instructions = list;
  link(schedule_);
  pack(schedule_);
  EXPECT_NE(verdict().find("reads version 0 of"), std::string::npos) << verdict();
}

TEST_F(SteadyRules, APendingGradientIsForTheNextVersion) {
  for (Residency& residency : schedule_.entry) {
    if (residency.kind == StateKind::kGradient) residency.version = 2;
  }
  EXPECT_NE(verdict().find("applies a gradient for version 2 to version 0"), std::string::npos)
      << verdict();
}

// Without the norm and the clip factor, which nothing else in the step would miss.
TEST_F(SteadyRules, AnUpdateLeftForTheNextStepHasItsNorm) {
  std::erase_if(schedule_.instructions, [](const Instruction& instruction) {
    return instruction.op == Op::kGradNorm || instruction.op == Op::kClipFactor;
  });
  for (Instruction& instruction : schedule_.instructions) instruction.deps.clear();
  link(schedule_);
  pack(schedule_);
  EXPECT_NE(verdict().find("is left for a later update without its norm"), std::string::npos)
      << verdict();
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
