// Values that a step recomputes: the same results, from fewer kept bytes, by counted passes.
#include "engine/schedule/compile/recompute.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>

#include "engine/schedule/check/interpret.hpp"
#include "engine/schedule/check/validate.hpp"
#include "tests/support/step_examples.hpp"
#include "tests/support/sweep.hpp"

namespace sluice::schedule {
namespace {

StepModel parted_model(int blocks, bool tied = true) {
  StepModel model = testing::example_model(blocks, tied, DType::kBF16);
  testing::cut_saved(model);
  return model;
}

StepOptions resident_options(const StepModel& model, std::int32_t microbatches) {
  StepOptions options =
      testing::example_options(model, Tier::kDevice, Tier::kDevice, Tier::kDevice);
  options.microbatches = microbatches;
  return options;
}

// Any units and parts, with state and activations anywhere and any order of passes and updates.
TEST(Recompute, AnyChoiceByUnitAndPartComputesThePlainStepInAnyTiming) {
  for (std::uint64_t seed = 0; seed < testing::sweep(40); ++seed) {
    SCOPED_TRACE(seed);
    const StepModel model = parted_model(1 + static_cast<int>(seed % 4), seed % 2 == 0);
    const auto microbatches = static_cast<std::int32_t>(1 + seed % 3);
    const Interpretation plain =
        interpret(compile(model, resident_options(model, microbatches), StepKind::kTraining));
    StepOptions options = testing::random_options(model, microbatches, seed);
    options.recompute = testing::random_recompute(model, seed);
    if (seed % 3 != 0) testing::scatter_saved(model, seed, options.placement);
    if (seed % 5 == 0) options.update = UpdatePlacement::kInBackward;
    const Schedule schedule = compile(model, options, StepKind::kTraining);
    for (const std::string& problem : validate(schedule, schedule.peak_bytes)) {
      ADD_FAILURE() << problem;
    }
    for (const InterpretOptions& timing : adverse_timings(seed, 2)) {
      const Interpretation values = interpret(schedule, timing);
      ASSERT_TRUE(values.errors.empty()) << values.errors.front();
      ASSERT_EQ(values.losses, plain.losses);
      const bool clips = options.update != UpdatePlacement::kInBackward;
      ASSERT_TRUE(!clips || values.same_values(plain));
    }
  }
}

// Passes of one unit in a step, by op.
std::map<Op, int> passes_of(const Schedule& schedule, std::int32_t unit) {
  std::map<Op, int> passes;
  for (const Instruction& instruction : schedule.instructions) {
    if (instruction.lane == Lane::kCompute && instruction.unit == unit &&
        instruction.op != Op::kRelease) {
      ++passes[instruction.op];
    }
  }
  return passes;
}

// Bytes of a unit's saved values that one micro-batch keeps between its two visits: those that
// backward reads as forward wrote them.
std::uint64_t kept_bytes(const Schedule& schedule, std::int32_t unit) {
  std::map<BufferId, Op> maker;
  std::map<BufferId, bool> kept;
  for (const Instruction& instruction : schedule.instructions) {
    if (instruction.unit != unit || instruction.lane != Lane::kCompute ||
        instruction.microbatch != 0 || instruction.op == Op::kRelease) {
      continue;
    }
    for (const Use& use : instruction.writes) maker[use.buffer] = instruction.op;
    for (const Use& use : instruction.reads) {
      const bool saved = schedule.buffers[use.buffer].role == BufferRole::kSaved;
      if (saved && maker.at(use.buffer) == Op::kForward) kept[use.buffer] = true;
    }
  }
  std::uint64_t bytes = 0;
  for (const auto& [id, is_kept] : kept) bytes += schedule.buffers[id].bytes;
  return bytes;
}

TEST(Recompute, CountsOfPassesAndKeptBytesFollowThePolicy) {
  const StepModel model = parted_model(4);
  const std::int32_t microbatches = 3;
  StepOptions options = resident_options(model, microbatches);
  const auto expect = [&](const Recomputation& recompute, std::uint64_t kept, int repeats) {
    options.recompute = recompute;
    const Schedule schedule = compile(model, options, StepKind::kTraining);
    for (std::int32_t unit = 1; unit <= 4; ++unit) {
      EXPECT_EQ(kept_bytes(schedule, unit), kept);
      std::map<Op, int> expected{{Op::kForward, microbatches},
                                 {Op::kBackwardInput, microbatches},
                                 {Op::kBackwardWeight, microbatches}};
      if (repeats > 0) expected[Op::kRecompute] = repeats;
      std::map<Op, int> passes = passes_of(schedule, unit);
      std::erase_if(passes, [&](const auto& pass) { return !expected.contains(pass.first); });
      EXPECT_EQ(passes, expected);
    }
    return schedule.device_arena_bytes;
  };
  // cut_saved(): the sizes of its parts.
  const std::uint64_t all = 40192, elementwise = 9728 + 8448, attention = 256 + 5120;
  const std::uint64_t none = expect({}, all, 0);
  const std::uint64_t selective =
      expect(recompute_parts(model, MadeBy::kElementwise), all - elementwise, microbatches);
  const std::uint64_t core =
      expect(recompute_parts(model, MadeBy::kAttention), all - attention, microbatches);
  const std::uint64_t unit = expect(recompute_units(model), 0, microbatches);
  // All but one unit keep less while one visit recomputes its parts.
  EXPECT_LE(selective + 3 * elementwise, none);
  EXPECT_LE(core + 3 * attention, none);
  EXPECT_LE(unit + 3 * all, none);
}

// Only the units that are named recompute anything.
TEST(Recompute, UnitsAreChosenOneByOne) {
  const StepModel model = parted_model(4);
  StepOptions options = resident_options(model, 1);
  options.recompute = recompute_units(model);
  options.recompute.units[2].parts = 0;
  options.recompute.units[3].parts = parts_made_by(model.units[3].saved_parts, MadeBy::kAttention);
  const Schedule schedule = compile(model, options, StepKind::kTraining);
  EXPECT_EQ(kept_bytes(schedule, 1), 0u);
  EXPECT_EQ(kept_bytes(schedule, 2), 40192u);
  EXPECT_FALSE(passes_of(schedule, 2).contains(Op::kRecompute));
  EXPECT_EQ(kept_bytes(schedule, 3), 40192u - 256 - 5120);
  const RecomputeSummary summary = summarize(model, options.recompute);
  EXPECT_EQ(summary.policy, "mixed");
  EXPECT_EQ(summary.units, 3);
  EXPECT_EQ(summary.of, 4);
  EXPECT_EQ(summary.freed_bytes, 2 * 40192u + 256 + 5120);
}

TEST(Recompute, APolicyHasItsName) {
  const StepModel model = parted_model(2);
  const auto name = [&](const Recomputation& recompute) {
    return summarize(model, recompute).policy;
  };
  EXPECT_EQ(name({}), "none");
  EXPECT_EQ(name(recompute_units(model)), "unit");
  EXPECT_EQ(name(recompute_parts(model, MadeBy::kElementwise)), "selective");
  EXPECT_EQ(name(recompute_parts(model, MadeBy::kAttention)), "attention");
  // Without named parts a unit is recomputed whole, or not at all.
  const StepModel whole = testing::example_model(2, true, DType::kBF16);
  EXPECT_EQ(summarize(whole, recompute_units(whole)).policy, "unit");
  EXPECT_FALSE(recompute_parts(whole, MadeBy::kElementwise).any());
}

// The outputs of forward passes that a later Recompute or backward pass reads.
std::size_t kept_outputs(const Schedule& schedule) {
  std::map<BufferId, Op> maker;
  std::map<BufferId, bool> kept;
  for (const Instruction& instruction : schedule.instructions) {
    if (instruction.lane != Lane::kCompute || instruction.op == Op::kRelease) continue;
    const bool first_visit = instruction.op == Op::kForward || instruction.op == Op::kLoss;
    for (const Use& use : instruction.reads) {
      const bool output = schedule.buffers[use.buffer].role == BufferRole::kActivation;
      if (output && !first_visit && maker.at(use.buffer) == Op::kForward) {
        kept[use.buffer] = true;
      }
    }
    for (const Use& use : instruction.writes) maker[use.buffer] = instruction.op;
  }
  return kept.size();
}

// Each forward pass runs twice, but for the last segment's. The inputs of all segments are kept,
// with the outputs within the last one, and the head's input.
TEST(Segments, RunForwardTwiceAndKeepOneInputEach) {
  for (int blocks = 1; blocks <= 9; ++blocks) {
    const StepModel model = parted_model(blocks);
    for (int length = 1; length <= blocks; ++length) {
      SCOPED_TRACE(::testing::Message() << blocks << " blocks, every " << length);
      StepOptions options = resident_options(model, 1);
      options.recompute = recompute_segments(model, length);
      const int segments = (blocks + length - 1) / length;
      const int in_last = blocks - (segments - 1) * length;
      const Schedule schedule = compile(model, options, StepKind::kTraining);
      EXPECT_TRUE(validate(schedule, schedule.peak_bytes).empty());
      int outputs_again = 0;
      for (std::int32_t unit = 1; unit <= blocks; ++unit) {
        std::map<Op, int> passes = passes_of(schedule, unit);
        EXPECT_EQ(passes[Op::kForward], 1);
        EXPECT_EQ(passes[Op::kRecompute], unit <= blocks - in_last ? 1 : 0);
      }
      for (const Instruction& instruction : schedule.instructions) {
        if (instruction.op != Op::kRecompute) continue;
        for (const Use& use : instruction.writes) {
          outputs_again += schedule.buffers[use.buffer].role == BufferRole::kActivation ? 1 : 0;
        }
      }
      EXPECT_EQ(outputs_again, (segments - 1) * (length - 1));
      EXPECT_EQ(kept_outputs(schedule), static_cast<std::size_t>(segments + (in_last - 1) + 1));
      const RecomputeSummary summary = summarize(model, options.recompute);
      EXPECT_EQ(summary.units, blocks - in_last);
      EXPECT_EQ(summary.policy, segments == 1 ? "none"
                                : length == 1 ? "unit"
                                              : "every:" + std::to_string(length));
    }
  }
}

// A longer model takes one more input for each segment, and no more parts.
TEST(Segments, HoldOneSegmentsPartsWhateverTheModel) {
  const auto arena = [](int blocks) {
    const StepModel model = parted_model(blocks);
    // State elsewhere leaves activations alone in the arena.
    StepOptions options =
        testing::example_options(model, Tier::kPinned, Tier::kPinned, Tier::kPinned);
    options.microbatches = 1;
    options.recompute = recompute_segments(model, 3);
    return compile(model, options, StepKind::kTraining).device_arena_bytes;
  };
  const std::uint64_t output_bytes = 8192;
  EXPECT_EQ(arena(24) - arena(12), 4 * output_bytes);
}

// In the order "unit" a segment's passes run for all micro-batches before any goes back.
TEST(Segments, RunInBothOrdersOfPasses) {
  const StepModel model = parted_model(6);
  for (const ComputeOrder order : {ComputeOrder::kMicrobatch, ComputeOrder::kUnit}) {
    for (const Tier tier : {Tier::kDevice, Tier::kPinned, Tier::kStorage}) {
      for (const std::int32_t length : {2, 4}) {
        const Interpretation plain =
            interpret(compile(model, resident_options(model, 3), StepKind::kTraining));
        StepOptions options = resident_options(model, 3);
        options.order = order;
        options.prefetch = 0;
        options.piece_elems = 4096;
        options.placement.activation.assign(model.units.size(), tier);
        options.recompute = recompute_segments(model, length);
        const Schedule schedule = compile(model, options, StepKind::kTraining);
        EXPECT_TRUE(validate(schedule, schedule.peak_bytes).empty());
        for (const InterpretOptions& timing : adverse_timings(1, 2)) {
          const Interpretation values = interpret(schedule, timing);
          ASSERT_TRUE(values.errors.empty()) << values.errors.front();
          ASSERT_TRUE(values.same_values(plain));
        }
      }
    }
  }
}

TEST(Segments, FetchWeightsOnceForAllMicrobatchesInUnitOrder) {
  const StepModel model = parted_model(6);
  const auto fetched = [&](std::int32_t microbatches) {
    StepOptions options =
        testing::example_options(model, Tier::kPinned, Tier::kDevice, Tier::kPinned);
    options.order = ComputeOrder::kUnit;
    options.microbatches = microbatches;
    options.recompute = recompute_segments(model, 3);
    std::uint64_t bytes = 0;
    for (const Instruction& instruction :
         compile(model, options, StepKind::kTraining).instructions) {
      if (instruction.op == Op::kUpload && instruction.unit >= 1) bytes += instruction.bytes;
    }
    return bytes;
  };
  EXPECT_EQ(fetched(2), fetched(6));
}

TEST(Segments, SqrtTakesTheLeastLengthWhoseSquareCoversTheUnits) {
  for (const auto& [blocks, length] :
       std::map<int, int>{{1, 1}, {2, 2}, {4, 2}, {5, 3}, {9, 3}, {10, 4}, {48, 7}, {49, 7}}) {
    EXPECT_EQ(sqrt_segment_length(parted_model(blocks)), length);
  }
}

TEST(Segments, ADroppedOutputNeedsWholeUnitsOnBothSides) {
  const StepModel model = parted_model(4);
  const Recomputation segments = recompute_segments(model, 2);
  EXPECT_TRUE(is_possible(model, segments));
  for (const std::size_t unit : {1, 2}) {
    Recomputation partial = segments;
    partial.units[unit].parts = part_bit(3);
    EXPECT_FALSE(is_possible(model, partial)) << unit;
  }
  Recomputation of_embedding = segments;
  of_embedding.units[0].output_run = 1;
  EXPECT_FALSE(is_possible(model, of_embedding));
  Recomputation to_head = segments;
  to_head.units[4].output_run = 1;
  EXPECT_FALSE(is_possible(model, to_head));
}

// Blocks 1 to 4 run again to their middle, and the first two of them once more. The last two keep
// their parts.
Recomputation nested_example(const StepModel& model) {
  Recomputation recompute;
  recompute.units.resize(model.units.size());
  const std::array<std::pair<std::int32_t, std::int32_t>, 4> runs{{{2, 2}, {1, 2}, {1, 1}, {0, 1}}};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const PartMask all = all_parts(model.units[i + 1].saved_parts);
    recompute.units[i + 1] = {all, runs[i].first, runs[i].second};
  }
  return recompute;
}

TEST(NestedSegments, RunEachUnitAsOftenAsItsDepthSays) {
  const StepModel model = parted_model(6);
  const Recomputation recompute = nested_example(model);
  ASSERT_TRUE(is_possible(model, recompute));
  const std::vector<std::vector<UnitRun>> repeated = repeated_passes(recompute);
  EXPECT_EQ(repeated[4], (std::vector<UnitRun>{{1, 1}, {2, 1}, {3, 1}, {4, 1}}));
  EXPECT_EQ(repeated[2], (std::vector<UnitRun>{{1, 2}, {2, 2}}));
  EXPECT_EQ(summarize(model, recompute).policy, "nested");
  StepOptions options = resident_options(model, 2);
  options.recompute = recompute;
  const Schedule schedule = compile(model, options, StepKind::kTraining);
  const std::array<int, 6> again{2, 2, 1, 1, 0, 0};
  for (std::int32_t unit = 1; unit <= 6; ++unit) {
    std::map<Op, int> passes = passes_of(schedule, unit);
    EXPECT_EQ(passes[Op::kForward], 2);
    EXPECT_EQ(passes[Op::kRecompute], 2 * again[static_cast<std::size_t>(unit - 1)]);
    EXPECT_EQ(kept_bytes(schedule, unit), unit > 4 ? 40192u : 0u);
  }
  // Only outputs of the first runs are read, and only those up to the middle.
  std::map<BufferId, int> reads;
  for (const Instruction& instruction : schedule.instructions) {
    if (instruction.lane != Lane::kCompute || instruction.op == Op::kRelease) continue;
    for (const Use& use : instruction.reads) ++reads[use.buffer];
  }
  int first_runs = 0;
  for (const Instruction& instruction : schedule.instructions) {
    if (instruction.op != Op::kRecompute || instruction.unit > 2) continue;
    const bool first =
        std::none_of(instruction.writes.begin(), instruction.writes.end(), [&](const Use& use) {
          return schedule.buffers[use.buffer].role == BufferRole::kSaved && reads[use.buffer] > 0;
        });
    first_runs += first ? 1 : 0;
  }
  EXPECT_EQ(first_runs, 2 * 2);
}

TEST(NestedSegments, ComputeThePlainStepInAnyTimingAndOrder) {
  for (std::uint64_t seed = 0; seed < testing::sweep(30); ++seed) {
    SCOPED_TRACE(seed);
    const StepModel model = parted_model(5 + static_cast<int>(seed % 4));
    const Interpretation plain =
        interpret(compile(model, resident_options(model, 2), StepKind::kTraining));
    const CounterRng random(seed, stream_of("test/nested"));
    std::uint64_t draw = 0;
    StepOptions options = testing::random_options(model, 2, seed);
    options.recompute.units.assign(model.units.size(), {});
    testing::nest_segments(options.recompute, 1, model.units.size() - 1, 0, model,
                           [&](std::uint64_t bound) { return random.below(draw++, bound); });
    ASSERT_TRUE(is_possible(model, options.recompute));
    const Schedule schedule = compile(model, options, StepKind::kTraining);
    for (const std::string& problem : validate(schedule, schedule.peak_bytes)) {
      ADD_FAILURE() << problem;
    }
    for (const InterpretOptions& timing : adverse_timings(seed, 2)) {
      const Interpretation values = interpret(schedule, timing);
      ASSERT_TRUE(values.errors.empty()) << values.errors.front();
      ASSERT_TRUE(values.same_values(plain));
    }
  }
}

// Most other numbers of runs leave a unit without its parts or input when backward comes to it. The
// first unit of a segment may keep its output one run earlier, or run once more by itself.
TEST(NestedSegments, RunsThatDoNotMatchAreRefused) {
  const StepModel model = parted_model(6);
  for (std::size_t unit = 1; unit <= 6; ++unit) {
    const bool begins = unit == 1 || unit == 3;
    for (const std::int32_t more : {-2, -1, 1, 2}) {
      Recomputation other = nested_example(model);
      other.units[unit].parts_run += more;
      EXPECT_EQ(is_possible(model, other), begins && more == 1) << unit << " " << more;
      other = nested_example(model);
      other.units[unit].output_run += more;
      EXPECT_EQ(is_possible(model, other), begins && more == -1) << unit << " " << more;
    }
  }
}

TEST(Segments, OfSeveralLengthsAreNoEveryK) {
  const StepModel model = parted_model(8);
  Recomputation recompute = recompute_segments(model, 2);
  ASSERT_EQ(summarize(model, recompute).policy, "every:2");
  recompute.units[2].output_run = 1;  // four, two, and the last two that keep everything
  ASSERT_TRUE(is_possible(model, recompute));
  EXPECT_EQ(summarize(model, recompute).policy, "segments");
}

// A Recompute that lacks a part that it makes others from, or makes half of an operation's parts.
TEST(Recompute, WrongSourcesAreRefusedAndGiveOtherValues) {
  const StepModel model = parted_model(3);
  StepOptions options = resident_options(model, 1);
  options.recompute = recompute_parts(model, MadeBy::kElementwise);
  const Schedule schedule = compile(model, options, StepKind::kTraining);
  ASSERT_TRUE(validate(schedule).empty());
  const Interpretation values = interpret(schedule);
  int damaged = 0;
  for (std::size_t i = 0; i < schedule.instructions.size(); ++i) {
    if (schedule.instructions[i].op != Op::kRecompute) continue;
    for (std::size_t k = 0; k < schedule.instructions[i].reads.size(); ++k) {
      const Use read = schedule.instructions[i].reads[k];
      if (schedule.buffers[read.buffer].role != BufferRole::kSaved) continue;
      Schedule without = schedule;
      auto& reads = without.instructions[i].reads;
      reads.erase(reads.begin() + static_cast<std::ptrdiff_t>(k));
      EXPECT_FALSE(validate(without).empty());
      EXPECT_FALSE(interpret(without).same_values(values));
      ++damaged;
    }
    Schedule less = schedule;
    Use& made = less.instructions[i].writes.front();
    ASSERT_EQ(schedule.buffers[made.buffer].role, BufferRole::kSaved);
    made.bytes = schedule.buffers[made.buffer].bytes - 256;
    EXPECT_FALSE(validate(less).empty());
  }
  EXPECT_EQ(damaged, 6);
}

TEST(Recompute, PartsOfOneOperationAreMadeTogether) {
  const StepModel model = parted_model(1);
  const std::vector<SavedPart>& parts = model.units[1].saved_parts;
  EXPECT_TRUE(can_be_remade(parts, 0));
  EXPECT_TRUE(can_be_remade(parts, all_parts(parts)));
  EXPECT_TRUE(can_be_remade(parts, part_bit(1) | part_bit(2)));
  EXPECT_FALSE(can_be_remade(parts, part_bit(1)));
  EXPECT_FALSE(can_be_remade(parts, part_bit(5)));
  EXPECT_EQ(sources_of(parts, part_bit(1) | part_bit(2)), part_bit(0));
  EXPECT_EQ(sources_of(parts, part_bit(3)), kUnitInput);
  EXPECT_EQ(sources_of(parts, all_parts(parts)), kUnitInput);
}

}  // namespace
}  // namespace sluice::schedule
