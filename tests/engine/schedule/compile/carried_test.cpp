// Updates of the back units in the backward pass and of the front units in the next forward pass:
// the terms of the plain order over whole runs, and the transfers and shadows that this takes.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/schedule/check/interpret.hpp"
#include "engine/schedule/check/validate.hpp"
#include "engine/schedule/compile/step_builder.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/step_chain.hpp"
#include "tests/support/step_examples.hpp"
#include "tests/support/sweep.hpp"

namespace sluice::schedule {
namespace {

using namespace testing;

constexpr std::uint64_t kCarriedSteps = 4;

StepOptions carrying(StepOptions options, UpdatePlacement update, std::int32_t units) {
  options.update = update;
  options.carried_units = units;
  return options;
}

// Each step's clip factor is one, or (speculative alone) the step is made once more.
bool stands(UpdatePlacement update, std::uint64_t seed, std::uint64_t step) {
  return update == UpdatePlacement::kInBackward || ((seed + 5) >> step) % 2 == 0;
}

void run_plain(StepChain& run, const StepModel& model, StepOptions options, UpdatePlacement update,
               std::uint64_t seed) {
  options.update = UpdatePlacement::kAfterBackward;
  const Schedule schedule = compile(model, options, StepKind::kTraining);
  for (std::uint64_t step = 0; step < kCarriedSteps; ++step) {
    run.pass(schedule, step, stands(update, seed, step));
  }
}

// Drains before the step `drained`, as an evaluation does, and at the end.
void run_carrying(StepChain& run, const StepModel& model, const StepOptions& options,
                  std::uint64_t seed, std::uint64_t drained) {
  const StepSchedules schedules = compile_all(model, options);
  bool pending = false;
  const auto drain = [&](std::uint64_t step) {
    run.pass(schedules[StepKind::kDrain], step);
    pending = false;
  };
  for (std::uint64_t step = 0; step < kCarriedSteps; ++step) {
    if (step == drained && pending) drain(step);
    const bool accepted = stands(options.update, seed, step);
    run.pass(schedules[pending ? StepKind::kTraining : StepKind::kFirst], step, accepted);
    if (::testing::Test::HasFatalFailure()) return;
    pending = true;
    if (accepted) continue;
    run.give_up();
    run.pass(schedules[StepKind::kRedo], step);
  }
  drain(kCarriedSteps);
}

void expect_plain_terms(std::uint64_t seed, UpdatePlacement update) {
  const StepModel model = drawn_model(seed);
  const auto microbatches = static_cast<std::int32_t>(1 + seed % 3);
  StepChain plain;
  run_plain(plain, model, resident_options(model, microbatches), update, seed);
  const auto units = static_cast<std::int32_t>(1 + seed % model.units.size());
  const StepOptions options = carrying(random_options(model, microbatches, seed), update, units);
  for (const InterpretOptions& timing : adverse_timings(seed, 1)) {
    StepChain run(timing);
    run_carrying(run, model, options, seed, seed % (kCarriedSteps + 1));
    if (::testing::Test::HasFatalFailure()) return;
    ASSERT_EQ(run.norms, plain.norms);
    ASSERT_EQ(run.losses, plain.losses);
    ASSERT_EQ(run.exit, plain.exit);
  }
}

TEST(CarriedUpdates, MakeTheSameTermsBesideUpdatesInBackward) {
  for (std::uint64_t seed = 0; seed < sweep(42); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_plain_terms(seed, UpdatePlacement::kInBackward);
    if (HasFatalFailure()) return;
  }
}

TEST(CarriedUpdates, MakeTheSameTermsBesideSpeculationWhateverIsRedone) {
  for (std::uint64_t seed = 0; seed < sweep(42); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_plain_terms(seed, UpdatePlacement::kSpeculative);
    if (HasFatalFailure()) return;
  }
}

// A steady step moves the bytes of any other; so do a first step and a drain together.
TEST(CarriedUpdates, MoveTheSameBytes) {
  for (std::uint64_t seed = 0; seed < sweep(20); ++seed) {
    const StepModel model = example_model(2, seed % 2 == 0, DType::kBF16);
    const StepOptions options = random_options(model, 2, seed);
    const LinkBytes plain = link_bytes(compile(model, options, StepKind::kTraining));
    for (const auto update : {UpdatePlacement::kInBackward, UpdatePlacement::kSpeculative}) {
      const StepSchedules some = compile_all(model, carrying(options, update, 2));
      EXPECT_EQ(link_bytes(some[StepKind::kTraining]), plain);
      LinkBytes both = link_bytes(some[StepKind::kFirst]);
      both += link_bytes(some[StepKind::kDrain]);
      EXPECT_EQ(both, plain);
    }
  }
}

// A deferred update knows its clip factor, so nothing has to be kept of the state before it.
TEST(CarriedUpdates, HaveNoShadows) {
  const StepModel model = example_model(3, false, DType::kBF16);
  const StepOptions options =
      carrying(example_options(model, Tier::kPinned, Tier::kPinned, Tier::kStorage),
               UpdatePlacement::kSpeculative, 2);
  const Schedule schedule = compile(model, options, StepKind::kTraining);
  std::vector<int> shadows(model.units.size());
  for (const Buffer& buffer : schedule.buffers) {
    if (buffer.shadow_of != kNoId) ++shadows[static_cast<std::size_t>(buffer.unit)];
  }
  for (std::size_t unit = 0; unit < shadows.size(); ++unit) EXPECT_EQ(shadows[unit] > 0, unit >= 2);
}

// Otherwise activations that leave the device would take its memory, and their copies would wait
// for the writes of updates.
TEST(CarriedUpdates, NoLaterValueTakesTheMemoryOfAKeptRing) {
  const StepModel model = example_model(3, false, DType::kBF16);
  StepOptions options = example_options(model, Tier::kPinned, Tier::kPinned, Tier::kStorage);
  options.update = UpdatePlacement::kNextForward;
  options.update_piece_elems = 4096;
  options.update_lookahead = 3;
  options.placement.activation.assign(model.units.size(), Tier::kPinned);
  for (const bool keeps : {false, true}) {
    options.keeps_update_ring = keeps;
    const Schedule schedule = compile(model, options, StepKind::kTraining);
    EXPECT_EQ(joined(validate(schedule)), "");
    const auto in_pinned = [&](const Buffer& buffer) {
      return !buffer.persistent && buffer.tier == Tier::kPinned;
    };
    std::size_t shared = 0;
    for (const Buffer& ring : schedule.buffers) {
      if (!in_pinned(ring) || ring.ring != static_cast<std::int32_t>(Ring::kUpdates)) continue;
      for (const Buffer& other : schedule.buffers) {
        const bool overlaps = in_pinned(other) && other.ring != ring.ring &&
                              other.offset_bytes < ring.offset_bytes + ring.bytes &&
                              ring.offset_bytes < other.offset_bytes + other.bytes;
        shared += overlaps ? 1 : 0;
      }
    }
    EXPECT_EQ(shared == 0, keeps) << shared;
  }
}

// Each update reads ahead into the next unit before that unit's gradient is there, as long as the
// gradient itself lies in pinned memory.
TEST(UpdateInBackward, ReadsTheStateOfUnitsWhoseGradientIsNotCompleteYet) {
  const StepModel model = example_model(3, false, DType::kBF16);
  for (const Tier gradients : {Tier::kPinned, Tier::kStorage}) {
    StepOptions options = example_options(model, Tier::kPinned, gradients, Tier::kStorage);
    options.update = UpdatePlacement::kInBackward;
    options.update_piece_elems = 4096;
    options.update_lookahead = 1000;
    const Schedule schedule = compile(model, options, StepKind::kTraining);
    InstructionId first_read_of_unit_1 = kNoId;
    InstructionId gradient_of_unit_1 = kNoId;
    for (const Instruction& instruction : schedule.instructions) {
      if (instruction.unit != 1) continue;
      if (instruction.op == Op::kBackwardWeight) gradient_of_unit_1 = instruction.id;
      const bool state = instruction.op == Op::kStorageRead &&
                         schedule.buffers[instruction.reads[0].buffer].kind == StateKind::kMoment1;
      if (state && first_read_of_unit_1 == kNoId) first_read_of_unit_1 = instruction.id;
    }
    EXPECT_EQ(first_read_of_unit_1 < gradient_of_unit_1, gradients == Tier::kPinned);
  }
}

// --- validate refuses each of these: they are one edit away from a schedule that it accepts ------

class DamagedCarrying : public ::testing::Test {
 protected:
  DamagedCarrying() {
    const StepModel model = example_model(2, false, DType::kBF16);
    schedule_ =
        compile(model,
                carrying(example_options(model, Tier::kPinned, Tier::kPinned, Tier::kPinned),
                         UpdatePlacement::kSpeculative, 2),
                StepKind::kTraining);
    EXPECT_EQ(joined(validate(schedule_)), "");
  }
  void expect_refused(const std::string& words) const {
    EXPECT_TRUE(holds(joined(validate(schedule_)), words));
  }
  Schedule schedule_;
};

// A unit of the back whose state is one version behind the others.
TEST_F(DamagedCarrying, AUnitThatIsNotCarriedAndWasNotUpdatedIsRefused) {
  for (Residency& residency : schedule_.entry) {
    if (residency.unit == 2) residency.version = 0;
  }
  expect_refused("where others read version 1");
}

TEST_F(DamagedCarrying, ACarriedGradientThatIsNotThereIsRefused) {
  std::erase_if(schedule_.entry, [](const Residency& residency) {
    return residency.kind == StateKind::kGradient && residency.unit == 1;
  });
  expect_refused("before it is written");
}

TEST_F(DamagedCarrying, ACarriedUpdateThatIsLeftOutIsRefused) {
  std::erase_if(schedule_.instructions, [](const Instruction& instruction) {
    return instruction.op == Op::kOptimizerStep && instruction.unit == 0;
  });
  relink(schedule_);
  expect_refused("where others read version");
}

}  // namespace
}  // namespace sluice::schedule
