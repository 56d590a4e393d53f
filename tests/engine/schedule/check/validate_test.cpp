// Each rule of validate, broken once on a schedule that is accepted as it stands; and the
// interpreter's own judgements.
#include "engine/schedule/check/validate.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "engine/schedule/check/interpret.hpp"
#include "tests/support/holds.hpp"
#include "tests/support/pipeline_example.hpp"
#include "tests/support/schedule_sketch.hpp"
#include "tests/support/step_examples.hpp"

namespace sluice::schedule {
namespace {

using testing::all;
using testing::ScheduleSketch;

// The first problem, or "accepted".
std::string verdict(const Schedule& schedule) {
  const std::vector<std::string> problems = validate(schedule);
  return problems.empty() ? "accepted" : problems.front();
}

// Weights on storage, three micro-batches, gradient summed in pinned memory, norm, clip, update.
Schedule step_from_storage() {
  const StepModel model = testing::example_model(1, true, DType::kBF16);
  StepOptions options =
      testing::example_options(model, Tier::kStorage, Tier::kPinned, Tier::kStorage);
  options.microbatches = 3;
  return compile(model, options, StepKind::kTraining);
}

Instruction& first(Schedule& schedule, Op op, std::int32_t microbatch = -1) {
  return *std::find_if(schedule.instructions.begin(), schedule.instructions.end(),
                       [&](const Instruction& at) {
                         return at.op == op && (microbatch < 0 || at.microbatch == microbatch);
                       });
}

// A rule, one way to break it, and words of the verdict.
struct Breach {
  const char* rule;
  std::function<void(Schedule&)> damage;
  const char* words;
};

const std::vector<Breach> kBreaches{
    {"deps point backwards", [](Schedule& step) { step.instructions[3].deps = {7}; },
     "waits for instruction 7, which is not before it"},
    {"uses lie inside their buffers",
     [](Schedule& step) {
       Use& use = first(step, Op::kUpload).reads[0];
       use.offset_bytes = step.buffers[use.buffer].bytes;
       use.bytes = 512;
     },
     "uses bytes outside"},
    {"transients are released once",
     [](Schedule& step) {
       Uses& released = first(step, Op::kRelease).reads;
       released.push_back(Use(released[0]));
     },
     "is released 2 times"},
    {"reads wait for writes", [](Schedule& step) { first(step, Op::kForward).deps.clear(); },
     "may touch"},
    {"only state named by entry is readable",
     [](Schedule& step) { step.entry.erase(step.entry.begin()); }, "before it is written"},
    {"copies correspond",
     [](Schedule& step) { first(step, Op::kStorageRead).writes[0].bytes /= 2; },
     "do not correspond"},
    {"micro-batches are summed in order",
     [](Schedule& step) { first(step, Op::kAccumulateGrad, 1).microbatch = 2; }, "micro-batch"},
    {"exit versions are reached", [](Schedule& step) { step.exit[0].version = 2; },
     "ends at version 1, not 2"},
    {"memory is not shared",
     [](Schedule& step) {
       std::vector<Buffer*> homes;
       for (Buffer& buffer : step.buffers) {
         if (buffer.persistent && buffer.tier == Tier::kStorage) homes.push_back(&buffer);
       }
       homes[1]->offset_bytes = homes[0]->offset_bytes;
     },
     "lie in the same memory at the same time"},
    {"places lie in their arenas", [](Schedule& step) { step.pinned_arena_bytes -= 4096; },
     "lies outside its arena"},
    {"peaks are not understated", [](Schedule& step) { step.peak_bytes[0] -= 1; },
     "declared smaller"}};

TEST(Validate, RefusesTheBreachOfEachRule) {
  const Schedule good = step_from_storage();
  ASSERT_EQ(verdict(good), "accepted");
  for (const Breach& breach : kBreaches) {
    Schedule damaged = good;
    breach.damage(damaged);
    EXPECT_TRUE(testing::holds(verdict(damaged), breach.words)) << breach.rule;
  }
}

// Two units of one size: each update gets the other's sums of whole tensors.
TEST(Validate, RefusesAnUpdateWithAnotherUnitsSums) {
  kernels::OptimizerOptions sm3;
  sm3.rule = kernels::OptimizerRule::kSm3;
  const StepModel model = testing::example_model(2, false, DType::kBF16, sm3);
  Schedule schedule =
      compile(model, testing::example_options(model, Tier::kPinned, Tier::kPinned, Tier::kPinned),
              StepKind::kTraining);
  ASSERT_EQ(verdict(schedule), "accepted");
  std::vector<Use*> sums;
  for (Instruction& instruction : schedule.instructions) {
    if (instruction.op != Op::kOptimizerStep || instruction.unit < 1 || instruction.unit > 2)
      continue;
    for (auto* uses : {&instruction.reads, &instruction.writes}) {
      for (Use& use : *uses) {
        if (schedule.buffers[use.buffer].kind == StateKind::kMoment2) sums.push_back(&use);
      }
    }
  }
  ASSERT_EQ(sums.size(), 4u);  // read and written, of each of the two
  std::swap(sums[0]->buffer, sums[2]->buffer);
  std::swap(sums[1]->buffer, sums[3]->buffer);
  EXPECT_TRUE(testing::holds(verdict(schedule), "mixes units, kinds or element ranges"));
}

TEST(Validate, RefusesAnUpdateAppliedToAnotherGradientThanWasNormed) {
  ScheduleSketch sketch;
  const BufferId weight = sketch.home(StateKind::kWeight, Tier::kDevice, 64, 1);
  const BufferId gradient = sketch.state(StateKind::kGradient, Tier::kDevice, 0, 64);
  const BufferId tied = sketch.state(StateKind::kGradient, Tier::kDevice, 0, 64, 1);
  const BufferId partial = sketch.buffer(BufferRole::kNormPartial, Tier::kPinned, 8, 0, -1);
  const BufferId clip = sketch.buffer(BufferRole::kScalar, Tier::kPinned, 8, 0, -1);
  sketch.emit(Op::kBackwardWeight, Lane::kCompute, {all(weight)}, {all(gradient), all(tied)});
  sketch.emit(Op::kGradNorm, Lane::kCompute, {all(gradient)}, {all(partial)});
  sketch.emit(Op::kFoldGrad, Lane::kCompute, {all(gradient), all(tied)}, {all(gradient)});
  sketch.emit(Op::kClipFactor, Lane::kCompute, {all(partial)}, {all(clip)});
  sketch.emit(Op::kOptimizerStep, Lane::kCompute, {all(gradient), all(weight), all(clip)},
              {all(weight)});
  for (const BufferId id : {gradient, tied, partial, clip}) sketch.release(Lane::kCompute, id);
  std::swap(sketch.schedule.instructions[1], sketch.schedule.instructions[2]);
  EXPECT_EQ(verdict(sketch.compiled()), "accepted");
  std::swap(sketch.schedule.instructions[1], sketch.schedule.instructions[2]);
  EXPECT_NE(verdict(sketch.compiled()).find("after its norm was taken"), std::string::npos);
}

TEST(Validate, MessagesMatchAndCannotDeadlock) {
  Schedule schedule = testing::two_stage_pipeline(2);
  ASSERT_EQ(verdict(schedule), "accepted");
  for (const InterpretOptions& timing : adverse_timings(1, 4)) {
    EXPECT_TRUE(interpret(schedule, timing).errors.empty());
  }
  InstructionId receive = kNoId;
  for (const Instruction& instruction : schedule.instructions) {
    if (instruction.op == Op::kRecvForward) receive = instruction.id;
  }
  Schedule untagged = schedule;
  untagged.instructions[receive].tag = 77;
  EXPECT_NE(verdict(untagged).find("has no matching"), std::string::npos);
  EXPECT_FALSE(interpret(untagged).errors.empty());
  Schedule shorter = schedule;
  shorter.instructions[receive].bytes -= 1;
  EXPECT_NE(verdict(shorter).find("differ in bytes"), std::string::npos);
}

// Both ranks send before they receive: fine where sends are buffered, a deadlock where they wait.
TEST(Validate, RefusesASendThatWaitsForASendThatWaits) {
  ScheduleSketch sketch;
  sketch.schedule.ranks = 2;
  std::array<BufferId, 2> out{}, in{};
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    out[at] = sketch.buffer(BufferRole::kActivation, Tier::kDevice, 64);
    in[at] = sketch.buffer(BufferRole::kActivation, Tier::kDevice, 64);
    for (const BufferId id : {out[at], in[at]}) sketch.schedule.buffers[id].rank = rank;
  }
  const auto emit = [&](Op op, Lane lane, std::int32_t rank, BufferId reads, BufferId writes) {
    Instruction& made = sketch.emit(op, lane, {}, {});
    made.rank = rank;
    made.peer = lane == Lane::kComm ? 1 - rank : -1;
    made.tag = 0;
    if (reads != kNoId) made.reads = {all(reads)};
    if (writes != kNoId) made.writes = {all(writes)};
  };
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    emit(Op::kForward, Lane::kCompute, rank, kNoId, out[static_cast<std::size_t>(rank)]);
    emit(Op::kSendForward, Lane::kComm, rank, out[static_cast<std::size_t>(rank)], kNoId);
  }
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    emit(Op::kRecvForward, Lane::kComm, rank, kNoId, in[at]);
    emit(Op::kBackwardInput, Lane::kCompute, rank, kNoId, kNoId);
    for (const BufferId id : {out[at], in[at]}) {
      emit(Op::kRelease, Lane::kComm, rank, id, kNoId);
    }
  }
  const Schedule schedule = sketch.compiled();
  InterpretOptions options;
  EXPECT_TRUE(interpret(schedule, options).errors.empty());
  options.rendezvous = true;
  EXPECT_FALSE(interpret(schedule, options).errors.empty());
  bool circle = false;
  for (const std::string& problem : validate(schedule)) {
    circle = circle || problem.find("circle of waits") != std::string::npos;
  }
  EXPECT_TRUE(circle);
}

TEST(Interpret, ReportsFreedMissingAndRacingMemory) {
  ScheduleSketch sketch;
  const BufferId saved = sketch.buffer(BufferRole::kSaved, Tier::kDevice, 64);
  sketch.emit(Op::kForward, Lane::kCompute, {}, {all(saved)});
  sketch.emit(Op::kBackwardInput, Lane::kH2D, {all(saved)}, {});
  sketch.release(Lane::kCompute, saved);
  const Schedule good = sketch.compiled();
  EXPECT_TRUE(interpret(good).errors.empty());
  const auto errors = [](Schedule schedule, const std::function<void(Schedule&)>& damage,
                         Timing timing, Lane lane) {
    damage(schedule);
    InterpretOptions options;
    options.timing = timing;
    options.lane = lane;
    std::string text;
    for (const std::string& error : interpret(schedule, options).errors) text += error + "\n";
    return text;
  };
  const auto drop_dep = [](Schedule& schedule) { schedule.instructions[1].deps.clear(); };
  EXPECT_NE(errors(good, drop_dep, Timing::kRunAhead, Lane::kH2D).find("never written"),
            std::string::npos);
  EXPECT_NE(errors(good, drop_dep, Timing::kOverlap, Lane::kH2D).find("while it runs"),
            std::string::npos);
  const auto free_early = [](Schedule& schedule) { schedule.instructions[2].deps.clear(); };
  EXPECT_NE(errors(good, free_early, Timing::kHoldBack, Lane::kH2D).find("freed"),
            std::string::npos);
  const auto circle = [](Schedule& schedule) { schedule.instructions[0].deps = {1}; };
  EXPECT_NE(errors(good, circle, Timing::kListOrder, Lane::kH2D).find("deadlock"),
            std::string::npos);
}

// Two writes of one place, a Release between them: only a dep keeps the second after the first.
TEST(Interpret, AStorageLaneGoesOnBeforeItsReleasesRetire) {
  ScheduleSketch sketch = testing::two_writes_of_one_home();
  Schedule schedule = sketch.compiled();
  InterpretOptions options;
  options.timing = Timing::kOverlap;
  EXPECT_TRUE(interpret(schedule, options).errors.empty());
  const auto mentions_sharing = [](const std::vector<std::string>& problems, const char* words) {
    return std::any_of(problems.begin(), problems.end(), [&](const std::string& problem) {
      return problem.find(words) != std::string::npos;
    });
  };
  EXPECT_FALSE(mentions_sharing(validate(schedule), "instruction 4"));
  schedule.instructions[4].deps = {1};
  EXPECT_TRUE(mentions_sharing(interpret(schedule, options).errors, "while it runs"));
  EXPECT_TRUE(mentions_sharing(validate(schedule), "instruction 4"));
}

TEST(Interpret, DistinguishesMicrobatchesUnitsAndOrder) {
  const StepModel model = testing::example_model(2, false, DType::kBF16);
  StepOptions options =
      testing::example_options(model, Tier::kPinned, Tier::kPinned, Tier::kPinned);
  const Interpretation two = interpret(compile(model, options, StepKind::kTraining));
  options.microbatches = 3;
  const Interpretation three = interpret(compile(model, options, StepKind::kTraining));
  EXPECT_NE(two.norm, three.norm);
  EXPECT_EQ(two.losses.at(1), three.losses.at(1));
  std::map<Term, int> seen;
  for (const auto& [key, term] : two.exit) ++seen[term];
  EXPECT_EQ(seen.size(), two.exit.size());
  EXPECT_EQ(two.exit.size(), 4u * 4u);  // weight, master, two moments of four units
}

// More instructions than a step of any model in the tests has: linear cost, no limit of size.
TEST(Validate, AcceptsSchedulesOfManyUnitsAndPieces) {
  const StepModel model = testing::example_model(60, true, DType::kBF16);
  StepOptions options =
      testing::example_options(model, Tier::kStorage, Tier::kStorage, Tier::kStorage);
  options.microbatches = 12;
  options.piece_elems = 4096;
  const Schedule schedule = compile(model, options, StepKind::kTraining);
  EXPECT_GT(schedule.instructions.size(), 50000u);
  EXPECT_EQ(verdict(schedule), "accepted");
}

// Collectives over two ranks: gathered shards have the unit's term, sums one of their own.
TEST(Interpret, GatherTilesTheUnit) {
  ScheduleSketch sketch;
  sketch.schedule.ranks = 2;
  sketch.schedule.groups = {{{0, 1}}};
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    const BufferId shard =
        sketch.state(StateKind::kWeight, Tier::kDevice, static_cast<std::uint64_t>(rank) * 32, 32);
    const BufferId window = sketch.state(StateKind::kWeight, Tier::kDevice, 0, 64);
    const BufferId loss = sketch.buffer(BufferRole::kLoss, Tier::kDevice, 8, 0, rank);
    sketch.schedule.buffers[shard].persistent = true;
    sketch.schedule.buffers[loss].persistent = true;
    sketch.schedule.entry.push_back({StateKind::kWeight, 0, rank, shard, 0});
    for (const BufferId id : {shard, window, loss}) sketch.schedule.buffers[id].rank = rank;
    testing::add_gather(sketch, rank, 2, shard, window, 128);
    Instruction& pass = sketch.emit(Op::kLoss, Lane::kCompute, {all(window)}, {all(loss)});
    pass.rank = rank;
    pass.microbatch = rank;
    sketch.release(Lane::kCompute, window);
    sketch.schedule.instructions.back().rank = rank;
  }
  const Schedule schedule = sketch.compiled();
  EXPECT_EQ(verdict(schedule), "accepted");
  const Interpretation gathered = interpret(schedule);
  ASSERT_TRUE(gathered.errors.empty()) << gathered.errors.front();

  ScheduleSketch alone;
  const BufferId home = alone.home(StateKind::kWeight, Tier::kDevice, 64, 0);
  const BufferId loss = alone.buffer(BufferRole::kLoss, Tier::kDevice, 8);
  alone.schedule.buffers[loss].persistent = true;
  alone.emit(Op::kLoss, Lane::kCompute, {all(home)}, {all(loss)});
  const Interpretation plain = interpret(alone.compiled());
  EXPECT_EQ(gathered.losses.at(0), plain.losses.at(0));
}

// Two units of two shards each. Both ranks gather and read one, then the other.
Schedule two_gathers() {
  ScheduleSketch sketch;
  sketch.schedule.ranks = 2;
  sketch.schedule.groups = {{{0, 1}}};
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    const BufferId loss = sketch.buffer(BufferRole::kLoss, Tier::kDevice, 8, 0, rank);
    sketch.schedule.buffers[loss].persistent = true;
    sketch.schedule.buffers[loss].rank = rank;
    for (std::int32_t unit = 0; unit < 2; ++unit) {
      const BufferId shard = sketch.state(StateKind::kWeight, Tier::kDevice,
                                          static_cast<std::uint64_t>(rank) * 32, 32, unit);
      sketch.schedule.buffers[shard].persistent = true;
      sketch.schedule.entry.push_back({StateKind::kWeight, unit, rank, shard, 0});
      const BufferId window = sketch.state(StateKind::kWeight, Tier::kDevice, 0, 64, unit);
      testing::add_gather(sketch, rank, 2, shard, window, 128);
      sketch.emit(unit == 0 ? Op::kForward : Op::kLoss, Lane::kCompute, {all(window)}, {});
      sketch.schedule.instructions.back().microbatch = rank;
      if (unit == 1) sketch.schedule.instructions.back().writes = {all(loss)};
      sketch.release(Lane::kCompute, window);
      for (const BufferId id : {shard, window}) sketch.schedule.buffers[id].rank = rank;
      for (std::size_t back = 1; back <= 3; ++back) {
        Instruction& made =
            *(sketch.schedule.instructions.end() - static_cast<std::ptrdiff_t>(back));
        made.rank = rank;
        made.unit = unit;
        made.layer = unit;
      }
    }
  }
  return sketch.compiled();
}

TEST(Collectives, ASecondGatherBringsTheVersionOfItsShards) {
  EXPECT_EQ(verdict(two_gathers()), "accepted");
}

// Each rank makes half of an activation, of micro-batch `made`; both read all of it.
Interpretation gathered_activation(std::int32_t made) {
  ScheduleSketch sketch;
  sketch.schedule.ranks = 2;
  sketch.schedule.groups = {{{0, 1}}};
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    const BufferId half = sketch.buffer(BufferRole::kActivation, Tier::kDevice, 64);
    const BufferId whole = sketch.buffer(BufferRole::kActivation, Tier::kDevice, 128);
    const BufferId loss = sketch.buffer(BufferRole::kLoss, Tier::kDevice, 8, 0, rank);
    sketch.schedule.buffers[loss].persistent = true;
    sketch.emit(Op::kForward, Lane::kCompute, {}, {all(half)}).microbatch = made;
    testing::add_gather(sketch, rank, 2, half, whole, 64);
    sketch.emit(Op::kLoss, Lane::kCompute, {all(whole)}, {all(loss)}).microbatch = rank;
    for (const BufferId id : {half, whole}) sketch.release(Lane::kCompute, id);
    for (const BufferId id : {half, whole, loss}) sketch.schedule.buffers[id].rank = rank;
    for (std::size_t i = sketch.schedule.instructions.size() - 5;
         i < sketch.schedule.instructions.size(); ++i) {
      sketch.schedule.instructions[i].rank = rank;
    }
  }
  return interpret(sketch.compiled());
}

TEST(Collectives, WhatIsGatheredDecidesWhatFollows) {
  const Interpretation zero = gathered_activation(0);
  const Interpretation one = gathered_activation(1);
  ASSERT_TRUE(zero.errors.empty()) << zero.errors.front();
  EXPECT_EQ(zero.losses, gathered_activation(0).losses);
  EXPECT_NE(zero.losses.at(0), one.losses.at(0));
}

}  // namespace
}  // namespace sluice::schedule
