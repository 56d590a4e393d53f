#include "allocator/record/iterations.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/rng.hpp"
#include "base/units.hpp"
#include "tools/replay/trace_generator.hpp"

namespace sluice::testing {
namespace {

// Sizes by letter: a capital stays until the end of the iteration, a small letter of the same size
// dies at once.
class Script {
 public:
  void run(const std::string& letters) {
    std::vector<std::uint32_t> held;
    for (const char letter : letters) {
      const auto id = static_cast<std::uint32_t>(trace_.allocations.size());
      record::TraceAllocation one;
      one.bytes = static_cast<std::uint64_t>(letter | 0x20) * kMiB;  // as a small letter
      trace_.allocations.push_back(one);
      trace_.operations.push_back({record::TraceAction::kAlloc, id});
      if (letter >= 'a') {
        trace_.operations.push_back({record::TraceAction::kFree, id});
      } else {
        held.push_back(id);
      }
    }
    for (const std::uint32_t id : held)
      trace_.operations.push_back({record::TraceAction::kFree, id});
  }
  void mark() { trace_.operations.push_back({record::TraceAction::kStep, 0}); }
  const record::MemoryTrace& trace() const { return trace_; }

 private:
  record::MemoryTrace trace_;
};

std::string repeated(const std::string& text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

record::MemoryTrace without_marks(record::MemoryTrace trace) {
  std::erase_if(trace.operations, [](const record::TraceOperation& one) {
    return one.action == record::TraceAction::kStep;
  });
  return trace;
}

// What is live at `first` becomes what was there before the record.
record::MemoryTrace cut_front(record::MemoryTrace trace, std::size_t first) {
  std::vector<char> state(trace.allocations.size(), 0);  // 1: live, 2: pending
  for (std::size_t i = 0; i < first; ++i) {
    const record::TraceOperation& one = trace.operations[i];
    if (one.action == record::TraceAction::kAlloc) state[one.allocation] = 1;
    if (one.action == record::TraceAction::kFree ||
        one.action == record::TraceAction::kFreeCompleted) {
      state[one.allocation] = 0;
    }
    if (one.action == record::TraceAction::kFreePending) state[one.allocation] = 2;
  }
  for (std::uint32_t id = 0; id < state.size(); ++id) {
    if (state[id] == 0) continue;
    record::SnapshotSegment segment;
    record::SnapshotBlock block;
    block.bytes = block.requested_bytes = trace.allocations[id].bytes;
    block.state =
        state[id] == 1 ? record::BlockState::kAllocated : record::BlockState::kPendingFree;
    segment.bytes = block.bytes;
    segment.blocks.push_back(block);
    trace.initial_segments.push_back(segment);
    trace.initial_ids.push_back({id});
  }
  trace.operations.erase(trace.operations.begin(),
                         trace.operations.begin() + static_cast<std::ptrdiff_t>(first));
  return trace;
}

record::MemoryTrace generated(const std::string& family, std::uint64_t seed,
                              std::uint32_t log_every = 0) {
  replay::GeneratorOptions options;
  options.family = family;
  options.seed = seed;
  options.iterations = 8;
  options.log_every = log_every;
  return replay::generate_trace(options);
}

std::size_t allocation_count(const record::MemoryTrace& trace,
                             const record::IterationRange& range) {
  std::size_t count = 0;
  for (std::size_t i = range.begin; i < range.end; ++i) {
    if (trace.operations[i].action == record::TraceAction::kAlloc) ++count;
  }
  return count;
}

TEST(Iterations, MarksAreTaken) {
  Script script;
  script.run("xyz");
  for (const char* letters : {"ABCd", "ABCd", "ABd", "ABCd"}) {
    script.mark();
    script.run(letters);
  }
  const record::Iterations found = record::find_iterations(script.trace());
  EXPECT_EQ(found.source, record::IterationSource::kMarks);
  ASSERT_EQ(found.ranges.size(), 4u);
  EXPECT_EQ(found.ranges[0].begin, 6u);
  EXPECT_EQ(found.ranges[3].end, script.trace().operations.size());
  ASSERT_EQ(found.matches.size(), 3u);
  EXPECT_TRUE(found.matches[0].is_exact);
  EXPECT_EQ(found.matches[0].allocation_share, 1.0);
  EXPECT_FALSE(found.matches[1].is_exact);
  EXPECT_EQ(found.matches[1].allocation_share, 0.75);
  EXPECT_EQ(found.repeats_after, 0u);
}

TEST(Iterations, AnIterationThatTheEndCutsOffIsNone) {
  Script script;
  for (const char* letters : {"ABCDefgh", "ABCDefgh", "ABCDe"}) {
    script.mark();
    script.run(letters);
  }
  EXPECT_EQ(record::find_iterations(script.trace()).ranges.size(), 2u);
}

TEST(Iterations, AFreeOfAnotherAllocationIsNoExactMatch) {
  record::MemoryTrace trace;
  trace.allocations.resize(4);
  for (record::TraceAllocation& one : trace.allocations) one.bytes = 8;
  const auto step = [&](std::uint32_t first, std::uint32_t freed) {
    trace.operations.push_back({record::TraceAction::kStep, 0});
    trace.operations.push_back({record::TraceAction::kAlloc, first});
    trace.operations.push_back({record::TraceAction::kAlloc, first + 1});
    trace.operations.push_back({record::TraceAction::kFree, freed});
    trace.operations.push_back({record::TraceAction::kFree, 2 * first + 1 - freed});
  };
  step(0, 0);
  step(2, 3);
  const record::Iterations found = record::find_iterations(trace);
  ASSERT_EQ(found.matches.size(), 1u);
  EXPECT_FALSE(found.matches[0].is_exact);
  EXPECT_EQ(found.matches[0].allocation_share, 1.0);
}

TEST(Iterations, AlternationRepeatsAfterTwo) {
  for (const bool marked : {true, false}) {
    Script script;
    for (int i = 0; i < 8; ++i) {
      if (marked) script.mark();
      script.run(i % 2 == 0 ? "ABCDEFGHabcdefgh" + repeated("xyz", 10)
                            : "ABCDEFIJabcdefij" + repeated("uvw", 8));
    }
    const record::Iterations found = record::find_iterations(script.trace());
    if (marked) {
      ASSERT_EQ(found.ranges.size(), 8u);
      EXPECT_EQ(found.repeats_after, 2u);
      EXPECT_LT(found.matches[0].allocation_share, 0.7);
    } else {
      ASSERT_GE(found.ranges.size(), 3u);
      EXPECT_EQ(allocation_count(script.trace(), found.ranges[1]), 46u + 40u);
      EXPECT_TRUE(found.matches.back().is_exact);
    }
  }
}

TEST(Iterations, ALayerIsNoIteration) {
  Script script;
  const std::string iteration = "ABCDabcd" + repeated("efghijklEF", 40) + "PQRSTUpqrstu";
  for (int i = 0; i < 6; ++i) script.run(iteration);
  const record::Iterations found = record::find_iterations(script.trace());
  ASSERT_GE(found.ranges.size(), 5u);
  for (const record::IterationRange& range : found.ranges) {
    EXPECT_EQ(allocation_count(script.trace(), range), iteration.size());
  }
  for (const record::IterationMatch& match : found.matches) EXPECT_TRUE(match.is_exact);
}

// Where the optimizer allocates nothing, only lifetimes tell the first of eight from the others:
// its gradients stay.
TEST(Iterations, AMicroBatchIsNoIteration) {
  for (const std::string optimizer : {"stuvwxyz", ""}) {
    Script script;
    const std::string iteration =
        "abcdefghijklGHIJmnop" + repeated("abcdefghijklghijmnop", 7) + optimizer;
    for (int i = 0; i < 6; ++i) script.run(iteration);
    const record::Iterations found = record::find_iterations(script.trace());
    ASSERT_GE(found.ranges.size(), 4u);
    EXPECT_EQ(allocation_count(script.trace(), found.ranges[1]), iteration.size());
  }
}

TEST(Iterations, ConstantStepsAreIterations) {
  Script script;
  for (int i = 0; i < 100; ++i) script.run("ABCDabcdefghij");
  const record::Iterations found = record::find_iterations(script.trace());
  EXPECT_GE(found.ranges.size(), 97u);
  EXPECT_EQ(allocation_count(script.trace(), found.ranges[3]), 14u);
  EXPECT_EQ(found.repeats_after, 1u);
}

TEST(Iterations, WhatDoesNotRepeatHasNone) {
  const CounterRng rng(3, stream_of("iterations"));
  Script script;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    script.run(std::string(1, static_cast<char>('a' + rng.below(i, 26))));
  }
  EXPECT_TRUE(record::find_iterations(script.trace()).ranges.empty());
  EXPECT_EQ(record::find_iterations(record::MemoryTrace{}).source, record::IterationSource::kNone);
  EXPECT_TRUE(record::find_iterations(without_marks(generated("varlen", 2))).ranges.empty());
}

class UnmarkedTrace : public ::testing::TestWithParam<std::string> {};

// Against the marks that were taken away: the same period, beginning where little is live.
TEST_P(UnmarkedTrace, HasThePeriodOfItsMarks) {
  const CounterRng rng(11, stream_of("iterations/cut"));
  for (std::uint64_t seed = 0; seed < 2; ++seed) {
    for (const std::uint32_t log_every : {0u, 3u}) {
      const record::MemoryTrace marked = generated(GetParam(), seed, log_every);
      const record::Iterations expected = record::find_iterations(marked);
      ASSERT_EQ(expected.ranges.size(), 8u);
      const std::size_t period = allocation_count(marked, expected.ranges[3]);
      const record::MemoryTrace whole = without_marks(marked);
      const std::size_t cut = rng.below(seed * 2 + log_every, whole.operations.size() / 2);
      for (const record::MemoryTrace& trace : {whole, cut_front(whole, cut)}) {
        record::check_trace(trace);
        const record::Iterations found = record::find_iterations(trace);
        const std::string label = marked.source + " log " + std::to_string(log_every) + " cut " +
                                  std::to_string(whole.operations.size() - trace.operations.size());
        EXPECT_EQ(found.source, record::IterationSource::kRepetition) << label;
        EXPECT_GE(found.ranges.size(), 3u) << label;
        if (found.ranges.size() < 3) continue;
        for (const record::IterationRange& range : found.ranges) {
          const auto count = static_cast<double>(allocation_count(trace, range));
          EXPECT_NEAR(count / static_cast<double>(period), 1.0, 0.025) << label;
        }
        EXPECT_EQ(found.repeats_after, 1u) << label;
        if (log_every == 0 && GetParam() == "dense") {
          EXPECT_TRUE(found.matches.back().is_exact) << label;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, UnmarkedTrace,
                         ::testing::Values("dense", "zero3", "recompute", "pipeline", "lora",
                                           "rlhf"),
                         [](const auto& family) { return family.param; });

}  // namespace
}  // namespace sluice::testing
