// Steps of several data-parallel ranks: the terms of one rank's step, the bytes that each sends,
// and the faults that validate names.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/schedule/check/interpret.hpp"
#include "engine/schedule/check/validate.hpp"
#include "engine/schedule/simulate/simulate.hpp"
#include "tests/engine/schedule/world/world_matrix.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/schedule_sketch.hpp"
#include "tests/support/sweep.hpp"

namespace sluice::schedule {
namespace {

using namespace testing;

// A sample of the combinations; world_sweep.cpp runs all of them.
TEST(World, AnyNumberOfRanksAndAnyStageMakesOneRanksTerms) {
  constexpr std::size_t kStride = 95;  // coprime to every digit of the combinations
  int tried = 0;
  for (std::size_t i = 0; i < sweep(64); ++i) {
    tried += expect_one_ranks_terms(world_case(i * kStride % kWorldCases), 1);
    if (HasFailure()) return;
  }
  EXPECT_GE(tried, static_cast<int>(sweep(64)));
}

// One rank adds its groups wherever their sums lie, and the number of groups is part of the terms.
TEST(FoldGroups, AreFoldedByOneTreeInEveryPlacement) {
  std::vector<Term> norms;
  for (const std::int32_t groups : {1, 2, 3, 6, 12}) {
    for (std::uint64_t seed = 0; seed < sweep(24); ++seed) {
      SCOPED_TRACE(std::to_string(groups) + " groups, seed " + std::to_string(seed));
      const StepModel model = drawn_model(seed);
      StepOptions resident = resident_options(model, 12);
      resident.fold_groups = groups;
      const Interpretation plain = interpret(compile(model, resident, StepKind::kTraining));
      ASSERT_EQ(joined(plain.errors), "");
      if (seed == 0) norms.push_back(plain.norm.value());
      StepOptions options = random_options(model, 12, seed);
      options.fold_groups = groups;
      const Schedule schedule = compile(model, options, StepKind::kTraining);
      ASSERT_EQ(joined(validate(schedule)), "");
      const Interpretation values = interpret(schedule, adverse_timings(seed, 2)[seed % 22]);
      ASSERT_EQ(joined(values.errors), "");
      ASSERT_TRUE(values.same_values(plain));
    }
  }
  std::sort(norms.begin(), norms.end());
  EXPECT_EQ(std::unique(norms.begin(), norms.end()), norms.end());
}

// --- bytes ---------------------------------------------------------------------------------------

std::uint64_t parameters_of(const StepModel& model) {
  std::uint64_t elems = model.tied_elems;
  for (const UnitFootprint& unit : model.units) elems += unit.elems;
  return elems;
}

struct Sent {
  std::uint64_t total = 0;
  std::uint64_t norm = 0;  // of it, partials of the norm
};
Sent sent_by_all(const Schedule& world) {
  Sent sent;
  std::uint64_t received = 0;
  for (std::int32_t rank = 0; rank < world.ranks; ++rank) {
    const MessageBytes bytes = message_bytes(world, rank)[static_cast<std::size_t>(Lane::kComm)];
    sent.total += bytes.sent;
    received += bytes.received;
  }
  EXPECT_EQ(sent.total, received);
  for (const Instruction& instruction : world.instructions) {
    if (instruction.op == Op::kGather && instruction.unit < 0) sent.norm += instruction.bytes;
  }
  return sent;
}

// The formulas count bytes of one rank where all shards are equal; times N they are exact for any
// shards. g = (N - 1) / N.
TEST(WorldBytes, AreThoseOfTheFormulas) {
  for (const bool tied : {false, true}) {
    const StepModel model = example_model(3, tied, DType::kBF16);
    const std::uint64_t weights = parameters_of(model) - model.tied_elems;
    const std::uint64_t gradients = parameters_of(model);
    for (const std::int32_t ranks : {2, 3, 4, 8}) {
      for (const std::int32_t rounds : {1, 2, 4}) {
        for (const std::int32_t groups : {1, ranks}) {
          for (const ComputeOrder order : {ComputeOrder::kMicrobatch, ComputeOrder::kUnit}) {
            for (std::int32_t stage = 0; stage <= 3; ++stage) {
              StepOptions options =
                  example_options(model, Tier::kPinned, Tier::kPinned, Tier::kPinned);
              options.microbatches = ranks * rounds;
              options.fold_groups = groups;
              options.order = order;
              options.prefetch = 0;
              place_for_stage(options.placement, stage);
              const Schedule world = world_of(model, options, StepKind::kTraining, ranks, stage);
              const Sent sent = sent_by_all(world);
              const auto others = static_cast<std::uint64_t>(ranks - 1);
              const auto m = static_cast<std::uint64_t>(rounds);
              // w: one partial in fp32, or every micro-batch in 16 bits.
              const std::uint64_t w = groups == 1 ? 2 * m : rounds == 1 ? 2 : 4;
              std::uint64_t expected = others * gradients * w;
              if (stage < 3) expected += others * weights * 2;
              if (stage == 3) {
                std::uint64_t gathers = 0;  // elements, of all fetches of one rank
                for (const Instruction& i : world.instructions) {
                  if (i.op == Op::kGather && i.unit >= 0 && i.rank == 0) {
                    gathers += model.units[static_cast<std::size_t>(i.unit)].elems;
                  }
                }
                // Two for each unit and visit, but one for the head, whose passes are neighbours.
                const std::uint64_t visits = order == ComputeOrder::kUnit ? 1 : m;
                EXPECT_LE(gathers, 2 * visits * weights);
                EXPECT_GE(gathers, visits * weights);
                expected += others * gathers * 2;
              }
              EXPECT_EQ(sent.total - sent.norm, expected)
                  << ranks << " ranks, stage " << stage << ", m " << rounds << ", groups "
                  << groups;
              EXPECT_EQ(sent.norm, others * (weights / 4096) * 8);
            }
          }
        }
      }
    }
  }
}

// The state between steps of one micro-batch for each rank: 16-bit weights and gradients, and 12
// bytes of optimizer state (10 with a split master). Shards are even but for one block.
TEST(WorldBytes, OfStateAreThoseOfTheStage) {
  for (const bool split : {false, true}) {
    kernels::OptimizerOptions optimizer;
    optimizer.split_master = split;
    const StepModel model = example_model(3, false, DType::kBF16, optimizer);
    const std::uint64_t psi = parameters_of(model);
    const std::uint64_t kept = split ? 10 : 12;
    for (const std::int32_t ranks : {2, 3, 4, 8}) {
      for (std::int32_t stage = 0; stage <= 3; ++stage) {
        StepOptions options = example_options(model, Tier::kPinned, Tier::kPinned, Tier::kPinned);
        options.microbatches = ranks;
        place_for_stage(options.placement, stage);
        const std::uint64_t whole = stage == 0 ? 4 + kept : stage == 3 ? 0 : 2;
        const std::uint64_t sharded = 4 + kept - whole;
        std::uint64_t all = 0;
        for (const Schedule& list :
             lists_of_ranks(model, options, StepKind::kTraining, ranks, stage)) {
          std::uint64_t bytes = 0;
          for (const Buffer& buffer : list.buffers) {
            if (buffer.persistent && buffer.role == BufferRole::kState) bytes += buffer.bytes;
          }
          const std::uint64_t block_bytes = model.units.size() * 4096 * sharded;
          const auto count = static_cast<std::uint64_t>(ranks);
          EXPECT_LE(bytes, whole * psi + sharded * psi / count + block_bytes);
          EXPECT_GE(bytes + block_bytes, whole * psi + sharded * psi / count);
          all += bytes;
        }
        EXPECT_EQ(all, static_cast<std::uint64_t>(ranks) * whole * psi + sharded * psi);
      }
    }
  }
}

// A durable run of several ranks commits the state that one rank would.
TEST(World, CommitsOneRanksState) {
  for (std::uint64_t seed = 0; seed < sweep(24); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const StepModel model = drawn_model(seed);
    const auto ranks = static_cast<std::int32_t>(2 + seed % 3);
    const auto stage = static_cast<std::int32_t>(seed / 3 % 4);
    StepOptions options = random_options(model, ranks * 2, seed);
    options.durable = true;
    StepOptions resident = resident_options(model, ranks * 2);
    resident.durable = true;
    place_for_stage(options.placement, stage);
    for (const StepKind kind : {StepKind::kSaving, StepKind::kSave}) {
      const Interpretation plain = interpret(compile(model, resident, kind));
      const Schedule world = world_of(model, options, kind, ranks, stage);
      ASSERT_EQ(joined(validate(world)), "");
      const Interpretation values = interpret(world, adverse_timings(seed, 2)[seed % 22]);
      ASSERT_EQ(joined(values.errors), "");
      EXPECT_FALSE(plain.committed.empty());
      EXPECT_EQ(values.committed, plain.committed);
      EXPECT_EQ(values.exit, plain.exit);
    }
  }
}

// --- reductions and times ------------------------------------------------------------------------

// A gradient of 64 elements by micro-batch; `sum` makes one of them.
BufferId add_gradient(ScheduleSketch& sketch, std::int32_t rank, std::int32_t microbatch) {
  const BufferId id = sketch.state(StateKind::kGradient, Tier::kDevice, 0, 64);
  sketch.schedule.buffers[id].rank = rank;
  sketch.schedule.buffers[id].microbatch = microbatch;
  Instruction& pass = sketch.emit(Op::kBackwardWeight, Lane::kCompute, {}, {all(id)});
  pass.rank = rank;
  pass.microbatch = microbatch;
  return id;
}
void take_norm(ScheduleSketch& sketch, std::int32_t rank, BufferId gradient) {
  const BufferId partial = sketch.buffer(BufferRole::kNormPartial, Tier::kPinned, 8);
  const BufferId clip = sketch.buffer(BufferRole::kScalar, Tier::kPinned, 16);
  for (const BufferId id : {partial, clip}) {
    sketch.schedule.buffers[id].rank = rank;
    sketch.schedule.buffers[id].persistent = true;
  }
  sketch.emit(Op::kGradNorm, Lane::kCompute, {all(gradient)}, {all(partial)}).rank = rank;
  sketch.emit(Op::kClipFactor, Lane::kOptimizer, {all(partial)}, {all(clip)}).rank = rank;
  sketch.release(Lane::kOptimizer, gradient);
  sketch.schedule.instructions.back().rank = rank;
}

// An all-reduce of three ranks, of which each brings the gradient of micro-batch `from[rank]`.
Schedule all_reduced(const std::vector<std::int32_t>& from) {
  ScheduleSketch world;
  world.schedule.ranks = 3;
  world.schedule.groups = {{{0, 1, 2}}};
  for (std::int32_t rank = 0; rank < 3; ++rank) {
    const BufferId own = add_gradient(world, rank, from[static_cast<std::size_t>(rank)]);
    const BufferId sum = world.state(StateKind::kGradient, Tier::kDevice, 0, 64);
    world.schedule.buffers[sum].rank = rank;
    Instruction& reduce = world.emit(Op::kAllReduce, Lane::kComm, {all(own)}, {all(sum)});
    reduce.rank = rank;
    reduce.group = 0;
    world.release(Lane::kComm, own);
    world.schedule.instructions.back().rank = rank;
    if (rank == 0) {
      take_norm(world, rank, sum);
    } else {
      world.emit(Op::kExternal, Lane::kCompute, {all(sum)}, {}).rank = rank;
      world.release(Lane::kCompute, sum);
      world.schedule.instructions.back().rank = rank;
    }
  }
  return world.compiled();
}

// The classical reductions, which a step names only where it does not ask for one rank's bits.
TEST(Reductions, AreTheTreeOfFoldsInTheOrderOfRanks) {
  const Schedule world = all_reduced({0, 1, 2});
  EXPECT_EQ(joined(validate(world)), "");
  const Interpretation reduced = interpret(world);
  ASSERT_EQ(joined(reduced.errors), "");

  ScheduleSketch alone;
  std::vector<BufferId> parts;
  for (std::int32_t mb = 0; mb < 3; ++mb) parts.push_back(add_gradient(alone, 0, mb));
  for (const std::size_t from : {std::size_t{1}, std::size_t{2}}) {
    alone.emit(Op::kFoldGrad, Lane::kCompute, {all(parts[0]), all(parts[from])}, {all(parts[0])});
    alone.release(Lane::kCompute, parts[from]);
  }
  take_norm(alone, 0, parts[0]);
  const Interpretation folded = interpret(alone.compiled());
  ASSERT_EQ(joined(folded.errors), "");
  EXPECT_EQ(reduced.norm, folded.norm);
}

TEST(Reductions, OfAMicrobatchTwiceAreRefused) {
  EXPECT_TRUE(holds(joined(validate(all_reduced({0, 1, 1}))), "do not follow each other"));
}

// A slow rank holds up the others at their next collective.
TEST(WorldTimes, RanksWaitForTheSlowest) {
  const StepModel model = example_model(2, false, DType::kBF16);
  StepOptions options = example_options(model, Tier::kPinned, Tier::kPinned, Tier::kPinned);
  options.microbatches = 4;
  const auto simulated = [&](double slow) {
    Schedule world = world_of(model, options, StepKind::kTraining, 4, 3);
    for (Instruction& instruction : world.instructions) {
      if (instruction.op == Op::kRelease) continue;
      instruction.cost_s = instruction.rank == 2 && instruction.lane == Lane::kCompute ? slow : 1.0;
    }
    return simulate(world, {});
  };
  const Simulation even = simulated(1.0);
  const Simulation held = simulated(3.0);
  EXPECT_GT(held.total_s, even.total_s + 2.0);
  const auto compute = static_cast<std::size_t>(Lane::kCompute);
  EXPECT_DOUBLE_EQ(held.busy_s[0][compute], even.busy_s[0][compute]);
  EXPECT_GT(held.compute_stall_s, even.compute_stall_s);
}

// --- faults --------------------------------------------------------------------------------------

Schedule small_world(std::int32_t ranks, std::int32_t stage) {
  const StepModel model = example_model(1, false, DType::kBF16);
  StepOptions options = example_options(model, Tier::kPinned, Tier::kPinned, Tier::kPinned);
  options.microbatches = ranks;
  place_for_stage(options.placement, stage);
  return world_of(model, options, StepKind::kTraining, ranks, stage);
}

TEST(WorldFaults, ARankThatMissesACollectiveIsNamed) {
  const StepModel model = example_model(1, false, DType::kBF16);
  StepOptions options = example_options(model, Tier::kPinned, Tier::kPinned, Tier::kPinned);
  options.microbatches = 3;
  std::vector<Schedule> lists = lists_of_ranks(model, options, StepKind::kTraining, 3, 3);
  const auto last = std::find_if(lists[1].instructions.rbegin(), lists[1].instructions.rend(),
                                 [](const Instruction& i) { return i.op == Op::kGather; });
  ASSERT_EQ(last->unit, -1);  // of norm partials
  last->op = Op::kRelease;
  last->reads.clear();
  last->writes.clear();
  const std::string verdict = joined(validate(merge(lists)));
  EXPECT_TRUE(holds(verdict, "rank 1 enters 6 collectives of group 0 where others enter 7"));
}

// A list of a rank alone is no world: it lacks the other members.
TEST(WorldFaults, ARanksOwnListIsNotAcceptedAlone) {
  const StepModel model = example_model(1, false, DType::kBF16);
  StepOptions options = example_options(model, Tier::kPinned, Tier::kPinned, Tier::kPinned);
  const auto lists = lists_of_ranks(model, options, StepKind::kTraining, 2, 3);
  EXPECT_TRUE(holds(joined(validate(lists[0])), "rank 1 enters 0 collectives of group 0"));
}

TEST(WorldFaults, AMicrobatchThatNobodyAddsIsMissed) {
  Schedule world = small_world(2, 3);
  std::erase_if(world.instructions, [](const Instruction& i) {
    return i.op == Op::kAccumulateGrad && i.microbatch == 1 && i.rank == 0 && i.unit == 1;
  });
  relink(world);
  EXPECT_TRUE(holds(joined(validate(world)), "with micro-batches 0 to 0 of 1"));
}

TEST(WorldFaults, PartsOfAnotherShardAreRefused) {
  Schedule world = small_world(2, 3);
  Instruction& gather =
      *std::find_if(world.instructions.begin(), world.instructions.end(),
                    [](const Instruction& i) { return i.op == Op::kGather && i.rank == 1; });
  gather.writes.front().offset_bytes += 8192;
  EXPECT_TRUE(holds(joined(validate(world)), "of another part"));
}

}  // namespace
}  // namespace sluice::schedule
