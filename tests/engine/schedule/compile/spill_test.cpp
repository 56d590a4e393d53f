// Activations that wait in pinned memory or on storage: the same values, less device memory.
#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "engine/schedule/check/interpret.hpp"
#include "engine/schedule/check/validate.hpp"
#include "tests/support/step_examples.hpp"

namespace sluice::schedule {
namespace {

using namespace testing;

// Several pieces of 16 KiB, the last one partly filled.
constexpr std::uint64_t kSavedBytes = 40000;

StepModel spilling_model(int blocks) {
  StepModel model = example_model(blocks, true, DType::kBF16);
  for (UnitFootprint& unit : model.units) {
    if (unit.saved_bytes > 0) unit.saved_bytes = kSavedBytes;
  }
  return model;
}

StepOptions spilling_options(const StepModel& model, Tier activation, ComputeOrder order,
                             std::int32_t microbatches) {
  StepOptions options =
      example_options(model, Tier::kPinned, Tier::kPinned, Tier::kPinned, activation);
  options.piece_elems = 4096;
  options.order = order;
  options.microbatches = microbatches;
  options.prefetch = 0;
  return options;
}

void expect_plain_values(const StepModel& model, const StepOptions& options,
                         const Interpretation& plain) {
  const Schedule schedule = compile(model, options, StepKind::kTraining);
  for (const std::string& problem : validate(schedule, schedule.peak_bytes)) {
    ADD_FAILURE() << problem;
  }
  for (const InterpretOptions& timing : adverse_timings(1, 4)) {
    const Interpretation values = interpret(schedule, timing);
    ASSERT_TRUE(values.errors.empty()) << values.errors.front();
    ASSERT_TRUE(values.same_values(plain));
  }
}

TEST(Spill, EveryTierAndOrderComputesThePlainStepInAnyTiming) {
  const StepModel model = spilling_model(4);
  for (const std::int32_t microbatches : {1, 3}) {
    const Interpretation plain =
        interpret(compile(model, resident_options(model, microbatches), StepKind::kTraining));
    for (const Tier tier : {Tier::kPinned, Tier::kStorage}) {
      for (const ComputeOrder order : {ComputeOrder::kMicrobatch, ComputeOrder::kUnit}) {
        for (const bool recompute : {false, true}) {
          for (const std::int32_t prefetch : {0, 1, 2}) {
            SCOPED_TRACE(::testing::Message()
                         << "tier " << tier_name(tier) << ", order " << static_cast<int>(order)
                         << ", recompute " << recompute << ", prefetch " << prefetch);
            StepOptions options = spilling_options(model, tier, order, microbatches);
            if (recompute) options.recompute = recompute_units(model);
            options.prefetch = prefetch;
            options.stream_lookahead = prefetch;
            expect_plain_values(model, options, plain);
            options.placement.activation[0] = Tier::kDevice;
            options.placement.activation[2] = Tier::kPinned;
            expect_plain_values(model, options, plain);
          }
        }
      }
    }
  }
}

// One micro-batch without recomputation: outputs and the saved activations of forward passes go
// down and up once. A value stays if the next visit, or the one after it, needs it again.
TEST(Spill, MovesEachValueOnceUnlessItIsNeededAtOnce) {
  const StepModel model = spilling_model(5);
  const Schedule schedule =
      compile(model, spilling_options(model, Tier::kPinned, ComputeOrder::kMicrobatch, 1),
              StepKind::kTraining);
  std::map<std::tuple<BufferRole, std::int32_t>, int> sent;
  std::map<std::tuple<BufferRole, std::int32_t>, int> brought;
  for (const Instruction& instruction : schedule.instructions) {
    if (instruction.op != Op::kSpillActivation && instruction.op != Op::kFetchActivation) continue;
    const Buffer& buffer = schedule.buffers[instruction.reads.front().buffer];
    ++(instruction.op == Op::kSpillActivation ? sent : brought)[{buffer.role, buffer.unit}];
    EXPECT_EQ(instruction.bytes, buffer.bytes);
  }
  // Units 0 to 6. The head (6) follows the last block (5) at once, and the block before (4) after
  // the visits of 5, 6 and 5. Block 5's output is used in the visits of 6 only; its saved
  // activations are away during the head's.
  std::map<std::tuple<BufferRole, std::int32_t>, int> expected;
  for (std::int32_t unit = 0; unit < 5; ++unit) expected[{BufferRole::kActivation, unit}] = 1;
  for (std::int32_t unit = 1; unit < 6; ++unit) expected[{BufferRole::kSaved, unit}] = 1;
  EXPECT_EQ(sent, expected);
  EXPECT_EQ(brought, expected);
}

// The memory of an output is released after the next unit's pass, which reads it, and copies that
// follow in the lane wait for that. So the unit's saved values go first.
TEST(Spill, OutputsGoLast) {
  const StepModel model = spilling_model(5);
  for (const std::int32_t prefetch : {0, 1, 2}) {
    StepOptions options = spilling_options(model, Tier::kPinned, ComputeOrder::kMicrobatch, 1);
    options.prefetch = prefetch;
    const Schedule schedule = compile(model, options, StepKind::kTraining);
    std::map<std::int32_t, std::vector<BufferRole>> sent;  // by unit
    for (const Instruction& instruction : schedule.instructions) {
      if (instruction.op != Op::kSpillActivation) continue;
      sent[instruction.unit].push_back(schedule.buffers[instruction.reads.front().buffer].role);
    }
    const std::vector<BufferRole> both{BufferRole::kSaved, BufferRole::kActivation};
    EXPECT_EQ(sent[1], both) << "prefetch " << prefetch;
    EXPECT_EQ(sent[2], both) << "prefetch " << prefetch;
  }
}

// With the order "unit" an output is used by the next unit's forward and backward pass, and its
// gradient waits for all micro-batches: down once each, up as often as used.
TEST(Spill, InUnitOrderOutputsComeBackForBothPassesAndGoDownOnce) {
  const StepModel model = spilling_model(3);
  const std::int32_t microbatches = 4;
  const Schedule schedule =
      compile(model, spilling_options(model, Tier::kPinned, ComputeOrder::kUnit, microbatches),
              StepKind::kTraining);
  std::map<BufferRole, int> sent;
  std::map<BufferRole, int> brought;
  for (const Instruction& instruction : schedule.instructions) {
    if (instruction.unit != 1) continue;  // the first block
    const BufferRole role = schedule.buffers[instruction.reads.front().buffer].role;
    if (instruction.op == Op::kSpillActivation) ++sent[role];
    if (instruction.op == Op::kFetchActivation) ++brought[role];
  }
  EXPECT_EQ(sent, (std::map<BufferRole, int>{{BufferRole::kActivation, microbatches},
                                             {BufferRole::kSaved, microbatches},
                                             {BufferRole::kGradOut, microbatches}}));
  EXPECT_EQ(brought, (std::map<BufferRole, int>{{BufferRole::kActivation, 2 * microbatches},
                                                {BufferRole::kSaved, microbatches},
                                                {BufferRole::kGradOut, microbatches}}));
}

// Each part where it likes to be, in any order of passes and any timing.
TEST(SpilledParts, AnyPlacesComputeThePlainStepInAnyTiming) {
  StepModel model = example_model(4, true, DType::kBF16);
  cut_saved(model);
  for (const std::int32_t microbatches : {1, 3}) {
    const Interpretation plain =
        interpret(compile(model, resident_options(model, microbatches), StepKind::kTraining));
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      for (const ComputeOrder order : {ComputeOrder::kMicrobatch, ComputeOrder::kUnit}) {
        for (const std::int32_t prefetch : {0, 1, 2}) {
          SCOPED_TRACE(::testing::Message()
                       << "seed " << seed << ", order " << static_cast<int>(order) << ", prefetch "
                       << prefetch);
          StepOptions options =
              spilling_options(model, static_cast<Tier>(seed % 3), order, microbatches);
          options.prefetch = prefetch;
          options.stream_lookahead = prefetch;
          if (seed == 5) options.recompute = recompute_units(model);
          scatter_saved(model, seed, options.placement);
          expect_plain_values(model, options, plain);
        }
      }
    }
  }
}

// Bytes of saved activations that go down in a step, by unit.
std::map<std::int32_t, std::uint64_t> saved_sent(const Schedule& schedule) {
  std::map<std::int32_t, std::uint64_t> sent;
  for (const Instruction& instruction : schedule.instructions) {
    const bool saved =
        instruction.op == Op::kSpillActivation &&
        schedule.buffers[instruction.reads.front().buffer].role == BufferRole::kSaved;
    if (saved) sent[instruction.unit] += instruction.bytes;
  }
  return sent;
}

// One part moves, and neither its neighbours nor other units' parts.
TEST(SpilledParts, OnlyPartsPlacedElsewhereMove) {
  StepModel model = example_model(4, true, DType::kBF16);
  cut_saved(model);
  StepOptions options = spilling_options(model, Tier::kDevice, ComputeOrder::kMicrobatch, 1);
  for (std::size_t part = 0; part < 5; ++part) {
    options.placement.saved.assign(model.units.size(), {});
    options.placement.saved[2].assign(5, Tier::kDevice);
    options.placement.saved[2][part] = Tier::kPinned;
    const Schedule schedule = compile(model, options, StepKind::kTraining);
    EXPECT_TRUE(validate(schedule, schedule.peak_bytes).empty());
    EXPECT_EQ(saved_sent(schedule),
              (std::map<std::int32_t, std::uint64_t>{{2, model.units[2].saved_parts[part].bytes}}));
  }
}

// With nothing fetched ahead, each half of backward holds its own inputs next to it, not the other
// half's; one region comes back whole.
TEST(SpilledParts, TakeLessDeviceMemoryThanOneRegion) {
  const auto arena = [](bool cut) {
    StepModel model = example_model(6, true, DType::kBF16);
    cut_saved(model);
    for (UnitFootprint& unit : model.units) {
      if (!cut) unit.saved_parts.clear();
      // A larger buffer next to it would hide the subject of this test: the memory of a
      // backward visit.
      unit.forward_workspace_bytes = 0;
      unit.backward_weight_workspace_bytes = 40192;
      unit.backward_input_workspace_bytes = 40192;
    }
    const StepOptions options =
        spilling_options(model, Tier::kPinned, ComputeOrder::kMicrobatch, 1);
    return compile(model, options, StepKind::kTraining).device_arena_bytes;
  };
  // The smaller of the parts that only one half reads: 16,896 bytes of the first, 18,176 of
  // the second.
  EXPECT_GE(arena(false), arena(true) + 16384);
}

// A pass that gets another part than it needs is refused.
TEST(SpilledParts, PassesThatReadTheWrongPartsAreRefused) {
  StepModel model = example_model(3, true, DType::kBF16);
  cut_saved(model);
  const StepOptions options = spilling_options(model, Tier::kPinned, ComputeOrder::kMicrobatch, 1);
  const Schedule schedule = compile(model, options, StepKind::kTraining);
  ASSERT_TRUE(validate(schedule).empty());
  int damaged = 0;
  for (std::size_t i = 0; i < schedule.instructions.size(); ++i) {
    const Op op = schedule.instructions[i].op;
    if (op != Op::kBackwardInput && op != Op::kBackwardWeight) continue;
    for (std::size_t k = 0; k < schedule.instructions[i].reads.size(); ++k) {
      const BufferId read = schedule.instructions[i].reads[k].buffer;
      if (schedule.buffers[read].role != BufferRole::kSaved) continue;
      Schedule without = schedule;
      auto& reads = without.instructions[i].reads;
      reads.erase(reads.begin() + static_cast<std::ptrdiff_t>(k));
      EXPECT_FALSE(validate(without).empty());
      Schedule less = schedule;
      less.instructions[i].reads[k].bytes = schedule.buffers[read].bytes - 256;
      EXPECT_FALSE(validate(less).empty());
      ++damaged;
    }
  }
  EXPECT_GT(damaged, 6);
}

std::uint64_t device_arena(int blocks, Tier activation, ComputeOrder order,
                           std::int32_t microbatches, bool recompute = false) {
  const StepModel model = spilling_model(blocks);
  StepOptions options = spilling_options(model, activation, order, microbatches);
  if (recompute) options.recompute = recompute_units(model);
  return compile(model, options, StepKind::kTraining).device_arena_bytes;
}

// Activations kept on the device grow with the model; spilled ones do not.
TEST(Spill, DeviceMemoryDoesNotGrowWithTheModel) {
  for (const bool recompute : {false, true}) {
    const auto arena = [&](int blocks, Tier tier) {
      return device_arena(blocks, tier, ComputeOrder::kMicrobatch, 1, recompute);
    };
    const std::uint64_t each = 8192 + (recompute ? 0 : kSavedBytes);
    EXPECT_GE(arena(12, Tier::kDevice), arena(4, Tier::kDevice) + 8 * each);
    EXPECT_EQ(arena(12, Tier::kPinned), arena(4, Tier::kPinned));
    EXPECT_EQ(arena(12, Tier::kStorage), arena(4, Tier::kStorage));
    EXPECT_LT(arena(4, Tier::kPinned), arena(4, Tier::kDevice));
  }
}

// Nor, in the order "unit", with the micro-batches: but for their tokens (512 bytes each).
TEST(Spill, DeviceMemoryDoesNotGrowWithTheMicrobatchesOfUnitOrder) {
  const auto arena = [&](std::int32_t microbatches, Tier tier) {
    return device_arena(4, tier, ComputeOrder::kUnit, microbatches);
  };
  EXPECT_GT(arena(12, Tier::kDevice), arena(4, Tier::kDevice) + 8 * 4 * kSavedBytes);
  for (const Tier tier : {Tier::kPinned, Tier::kStorage}) {
    EXPECT_LE(arena(12, tier), arena(4, tier) + std::uint64_t{8} * 512);
  }
}

// Spilled to storage, the pinned ring does not grow with the model either; storage does.
TEST(Spill, PinnedMemoryIsARingWhereActivationsAreStored) {
  const auto schedule = [](int blocks, Tier tier) {
    const StepModel model = spilling_model(blocks);
    StepOptions options = spilling_options(model, tier, ComputeOrder::kMicrobatch, 1);
    options.placement.weight.assign(model.units.size(), Tier::kDevice);
    options.placement.gradient.assign(model.units.size(), Tier::kDevice);
    options.placement.optimizer.assign(model.units.size(), Tier::kDevice);
    return compile(model, options, StepKind::kTraining);
  };
  const auto transient = [](const Schedule& step, Tier tier) {
    std::uint64_t persistent = 0;
    for (const Buffer& buffer : step.buffers) {
      if (buffer.persistent && buffer.tier == tier) {
        persistent = std::max(persistent, round_up(buffer.offset_bytes + buffer.bytes, 4096));
      }
    }
    return step.peak_bytes[static_cast<std::size_t>(tier)] - persistent;
  };
  const std::uint64_t each = 8192 + kSavedBytes;
  EXPECT_EQ(transient(schedule(4, Tier::kStorage), Tier::kPinned),
            transient(schedule(12, Tier::kStorage), Tier::kPinned));
  EXPECT_GE(transient(schedule(12, Tier::kStorage), Tier::kStorage),
            transient(schedule(4, Tier::kStorage), Tier::kStorage) + 8 * each);
  EXPECT_GE(transient(schedule(12, Tier::kPinned), Tier::kPinned),
            transient(schedule(4, Tier::kPinned), Tier::kPinned) + 8 * each);
  EXPECT_EQ(schedule(12, Tier::kPinned).peak_bytes[2], 0u);
}

TEST(Spill, NothingIsSpilledInEvaluation) {
  const StepModel model = spilling_model(4);
  const StepOptions options = spilling_options(model, Tier::kPinned, ComputeOrder::kUnit, 3);
  for (const Instruction& instruction :
       compile(model, options, StepKind::kEvaluation).instructions) {
    EXPECT_NE(instruction.op, Op::kSpillActivation);
  }
}

// A copy of a piece must go where the piece belongs.
TEST(Spill, PiecesThatChangePlacesAreRefused) {
  const StepModel model = spilling_model(3);
  StepOptions options = spilling_options(model, Tier::kStorage, ComputeOrder::kMicrobatch, 1);
  options.stream_lookahead = 2;
  Schedule schedule = compile(model, options, StepKind::kTraining);
  ASSERT_TRUE(validate(schedule).empty());
  std::vector<Instruction*> writes;
  for (Instruction& instruction : schedule.instructions) {
    const bool saved =
        instruction.op == Op::kStorageWrite && instruction.unit == 1 &&
        schedule.buffers[instruction.reads.front().buffer].role == BufferRole::kSaved;
    if (saved) writes.push_back(&instruction);
  }
  ASSERT_EQ(writes.size(), 3u);
  ASSERT_EQ(writes[0]->bytes, writes[1]->bytes);
  std::swap(writes[0]->writes, writes[1]->writes);
  EXPECT_FALSE(validate(schedule).empty());
}

}  // namespace
}  // namespace sluice::schedule
