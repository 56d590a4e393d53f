#include "allocator/record/iterations.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/rng.hpp"
#include "base/units.hpp"
#include "tests/support/check_trace.hpp"

namespace sluice::record {
namespace {

// Builds a trace from letters. Each letter is an allocation, and its size is the letter's number.
// A capital lives until the end of its run(); a small letter is freed at once.
class Script {
 public:
  void run(const std::string& letters) {
    std::vector<std::uint32_t> held;
    for (const char letter : letters) {
      const auto id = static_cast<std::uint32_t>(trace_.allocations.size());
      TraceAllocation one;
      one.bytes = static_cast<std::uint64_t>(letter | 0x20) * kMiB;  // as a small letter
      trace_.allocations.push_back(one);
      trace_.operations.push_back({TraceAction::kAlloc, id});
      if (letter >= 'a') {
        trace_.operations.push_back({TraceAction::kFree, id});
      } else {
        held.push_back(id);
      }
    }
    for (const std::uint32_t id : held) trace_.operations.push_back({TraceAction::kFree, id});
  }
  void mark() { trace_.operations.push_back({TraceAction::kStep, 0}); }
  const MemoryTrace& trace() const { return trace_; }

 private:
  MemoryTrace trace_;
};

std::string repeated(const std::string& text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

TEST(Iterations, UsesTheMarksOfTheRecord) {
  Script script;
  script.run("xyz");
  for (const char* letters : {"ABCd", "ABCd", "ABd", "ABCd"}) {
    script.mark();
    script.run(letters);
  }
  const Iterations found = find_iterations(script.trace());
  EXPECT_EQ(found.source, IterationSource::kMarks);
  ASSERT_EQ(found.ranges.size(), 4u);
  EXPECT_EQ(found.ranges[0].begin, 6u);
  EXPECT_EQ(found.ranges[3].end, script.trace().operations.size());
  EXPECT_EQ(found.repeats_after, 0u);
}

TEST(Iterations, DropsTheIterationThatTheEndCutsOff) {
  Script script;
  for (const char* letters : {"ABCDefgh", "ABCDefgh", "ABCDe"}) {
    script.mark();
    script.run(letters);
  }
  EXPECT_EQ(find_iterations(script.trace()).ranges.size(), 2u);
}

TEST(Iterations, AlternationRepeatsAfterTwo) {
  for (const bool marked : {true, false}) {
    Script script;
    for (int i = 0; i < 8; ++i) {
      if (marked) script.mark();
      script.run(i % 2 == 0 ? "ABCDEFGHabcdefgh" + repeated("xyz", 10)
                            : "ABCDEFIJabcdefij" + repeated("uvw", 8));
    }
    const Iterations found = find_iterations(script.trace());
    if (marked) {
      ASSERT_EQ(found.ranges.size(), 8u);
      EXPECT_EQ(found.repeats_after, 2u);
    } else {
      ASSERT_GE(found.ranges.size(), 3u);
      EXPECT_EQ(testing::allocation_count(script.trace(), found.ranges[1]), 46u + 40u);
      EXPECT_EQ(found.repeats_after, 1u);
    }
  }
}

TEST(Iterations, DoesNotTakeALayerForAnIteration) {
  Script script;
  const std::string iteration = "ABCDabcd" + repeated("efghijklEF", 40) + "PQRSTUpqrstu";
  for (int i = 0; i < 6; ++i) script.run(iteration);
  const Iterations found = find_iterations(script.trace());
  ASSERT_GE(found.ranges.size(), 5u);
  for (const IterationRange& range : found.ranges) {
    EXPECT_EQ(testing::allocation_count(script.trace(), range), iteration.size());
  }
  EXPECT_EQ(found.repeats_after, 1u);
}

// Without an optimizer's allocations, only lifetimes distinguish the first of eight micro-batches
// from the others: its gradients stay.
TEST(Iterations, DoesNotTakeAMicroBatchForAnIteration) {
  for (const std::string optimizer : {"stuvwxyz", ""}) {
    Script script;
    const std::string iteration =
        "abcdefghijklGHIJmnop" + repeated("abcdefghijklghijmnop", 7) + optimizer;
    for (int i = 0; i < 6; ++i) script.run(iteration);
    const Iterations found = find_iterations(script.trace());
    ASSERT_GE(found.ranges.size(), 4u);
    EXPECT_EQ(testing::allocation_count(script.trace(), found.ranges[1]), iteration.size());
  }
}

TEST(Iterations, FindsStepsThatAreAllAlike) {
  Script script;
  for (int i = 0; i < 100; ++i) script.run("ABCDabcdefghij");
  const Iterations found = find_iterations(script.trace());
  EXPECT_GE(found.ranges.size(), 97u);
  EXPECT_EQ(testing::allocation_count(script.trace(), found.ranges[3]), 14u);
  EXPECT_EQ(found.repeats_after, 1u);
}

// Periods shorter than the runs that are compared: the record's last iterations count, too.
TEST(Iterations, ShortIterationsGoOnToTheEnd) {
  for (const char* const letters : {"a", "ab", "abc", "abcde", "abcdefg", "abcdefgh"}) {
    const std::size_t period = std::string(letters).size();
    Script script;
    script.run(repeated(letters, 40));
    const Iterations found = find_iterations(script.trace());
    // An iteration may begin at any letter. Less than one is left at the end.
    EXPECT_GE(found.ranges.size(), 39u) << letters;
    ASSERT_FALSE(found.ranges.empty());
    EXPECT_LT(testing::allocation_count(
                  script.trace(), {found.ranges.back().end, script.trace().operations.size()}),
              period)
        << letters;
    for (const IterationRange& range : found.ranges) {
      EXPECT_EQ(testing::allocation_count(script.trace(), range), period) << letters;
    }
  }
}

TEST(Iterations, FindsNoneInRandomAllocations) {
  const CounterRng rng(3, stream_of("iterations"));
  Script script;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    script.run(std::string(1, static_cast<char>('a' + rng.below(i, 26))));
  }
  EXPECT_TRUE(find_iterations(script.trace()).ranges.empty());
  EXPECT_EQ(find_iterations(MemoryTrace{}).source, IterationSource::kNone);
}

}  // namespace
}  // namespace sluice::record
