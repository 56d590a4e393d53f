// Iterations found in generated traces without marks, against the marks that were removed.
#include <gtest/gtest.h>

#include <string>

#include "allocator/record/iterations.hpp"
#include "base/rng.hpp"
#include "tests/support/check_trace.hpp"
#include "tools/replay/generated/trace_generator.hpp"

namespace sluice::replay {
namespace {

record::MemoryTrace without_marks(record::MemoryTrace trace) {
  std::erase_if(trace.operations, [](const record::TraceOperation& one) {
    return one.action == record::TraceAction::kStep;
  });
  return trace;
}

// The trace from operation `first` on. Allocations that are live there become the memory that the
// record begins with.
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
    const std::uint64_t bytes = trace.allocations[id].bytes;
    const auto live =
        state[id] == 1 ? record::BlockState::kAllocated : record::BlockState::kPendingFree;
    trace.initial_segments.push_back({.bytes = bytes, .blocks = {{0, bytes, bytes, live}}});
    trace.initial_ids.push_back({id});
  }
  trace.operations.erase(trace.operations.begin(),
                         trace.operations.begin() + static_cast<std::ptrdiff_t>(first));
  return trace;
}

record::MemoryTrace generated_trace(const std::string& family, std::uint64_t seed,
                                    std::uint32_t log_every = 0) {
  return generate_trace({.family = family, .seed = seed, .iterations = 8, .log_every = log_every});
}

TEST(GeneratedIterations, TracesOfVaryingLengthHaveNone) {
  EXPECT_TRUE(record::find_iterations(without_marks(generated_trace("moe", 2))).ranges.empty());
}

class UnmarkedTrace : public ::testing::TestWithParam<std::string> {};

// The period equals that of the removed marks. Iterations begin at a point where little is live.
TEST_P(UnmarkedTrace, HasThePeriodOfItsMarks) {
  const CounterRng rng(11, stream_of("iterations/cut"));
  for (std::uint64_t seed = 0; seed < 2; ++seed) {
    for (const std::uint32_t log_every : {0u, 3u}) {
      const record::MemoryTrace marked = generated_trace(GetParam(), seed, log_every);
      const record::Iterations expected = record::find_iterations(marked);
      ASSERT_EQ(expected.ranges.size(), 8u);
      const std::size_t period = testing::allocation_count(marked, expected.ranges[3]);
      const record::MemoryTrace whole = without_marks(marked);
      const std::size_t cut = rng.below(seed * 2 + log_every, whole.operations.size() / 2);
      for (const record::MemoryTrace& trace : {whole, cut_front(whole, cut)}) {
        testing::check_trace(trace);
        const record::Iterations found = record::find_iterations(trace);
        const std::string label = marked.source + " log " + std::to_string(log_every) + " cut " +
                                  std::to_string(whole.operations.size() - trace.operations.size());
        EXPECT_EQ(found.source, record::IterationSource::kRepetition) << label;
        EXPECT_GE(found.ranges.size(), 3u) << label;
        if (found.ranges.size() < 3) continue;
        for (const record::IterationRange& range : found.ranges) {
          const auto count = static_cast<double>(testing::allocation_count(trace, range));
          EXPECT_NEAR(count / static_cast<double>(period), 1.0, 0.025) << label;
        }
        EXPECT_EQ(found.repeats_after, 1u) << label;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, UnmarkedTrace, ::testing::Values("dense", "zero3"),
                         [](const auto& family) { return family.param; });

}  // namespace
}  // namespace sluice::replay
