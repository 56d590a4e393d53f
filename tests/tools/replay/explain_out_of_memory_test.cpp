#include "tools/replay/explain_out_of_memory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "allocator/oom/oom_text.hpp"
#include "base/memory_kinds.hpp"

namespace sluice::replay {
namespace {

// Blocks of a page and a half on stream 70, every second of which is freed. Then stream 71 asks for
// 12 pages, which the freed parts of pages do not give.
record::MemoryTrace fragmenting_trace() {
  record::MemoryTrace trace;
  trace.names = {"", "kept", "passing"};
  const auto alloc = [&](std::uint64_t bytes, std::uint64_t stream, std::uint32_t name) {
    const auto id = static_cast<std::uint32_t>(trace.allocations.size());
    trace.allocations.push_back(
        {.bytes = bytes, .stream = stream, .category = Category::kActivation, .name = name});
    trace.operations.push_back({record::TraceAction::kAlloc, id});
    return id;
  };
  std::vector<std::uint32_t> passing;
  for (int i = 0; i < 8; ++i) {
    alloc(kPageBytes + kPageBytes / 2, 70, 1);
    passing.push_back(alloc(kPageBytes + kPageBytes / 2, 70, 2));
  }
  for (const std::uint32_t id : passing)
    trace.operations.push_back({record::TraceAction::kFree, id});
  alloc(12 * kPageBytes, 71, 2);
  return trace;
}

std::optional<OutOfMemoryExplanation> explain(const record::MemoryTrace& trace,
                                              std::uint64_t capacity_bytes) {
  SteppedTrace stepped;
  stepped.trace = trace;
  return explain_out_of_memory(stepped, capacity_bytes);
}

TEST(ExplainOutOfMemory, ReportsInTheNamesOfTheTraceAndFindsTheLeastCapacity) {
  const record::MemoryTrace trace = fragmenting_trace();
  EXPECT_FALSE(explain(trace, 64 * kPageBytes).has_value());
  const auto explanation = explain(trace, 24 * kPageBytes);
  ASSERT_TRUE(explanation.has_value());
  EXPECT_EQ(explanation->failed_operation, trace.operations.size() - 1);
  const allocator::OomReport& report = *explanation->report;
  EXPECT_EQ(report.cause, allocator::OomCause::kFragmentation) << report.proof;
  EXPECT_EQ(report.stream, 71u);
  EXPECT_EQ(report.site, "passing");
  ASSERT_EQ(report.sites.size(), 1u);
  EXPECT_EQ(report.sites[0].name, "kept");
  const auto& tried = explanation->fixes.tried;
  const auto larger = std::find_if(tried.begin(), tried.end(), [](const allocator::OomFix& fix) {
    return fix.change == allocator::OomChange::kLargerDevice;
  });
  ASSERT_NE(larger, tried.end());
  EXPECT_TRUE(larger->is_least);
  EXPECT_NE(allocator::oom_text(report, &explanation->fixes).find(larger->text), std::string::npos);
  const std::uint64_t enough = 24 * kPageBytes + larger->bytes;
  EXPECT_FALSE(explain(trace, enough).has_value());
  EXPECT_TRUE(explain(trace, enough - kPageBytes).has_value());
}

TEST(ExplainOutOfMemory, ReportsATraceThatDoesNotFitFromItsStart) {
  record::MemoryTrace trace = fragmenting_trace();
  trace.initial_segments.push_back(
      {.bytes = 8 * kPageBytes, .blocks = {{.bytes = 8 * kPageBytes}}});
  trace.initial_segments.back().blocks[0].state = record::BlockState::kAllocated;
  trace.initial_ids.push_back({static_cast<std::uint32_t>(trace.allocations.size())});
  trace.allocations.push_back({.bytes = 8 * kPageBytes});
  const auto explanation = explain(trace, 4 * kPageBytes);
  ASSERT_TRUE(explanation.has_value());
  EXPECT_FALSE(explanation->failed_operation.has_value());
  EXPECT_TRUE(explanation->fixes.tried.empty());
  EXPECT_FALSE(explanation->fixes.note.empty());
}

// Marks that were added to the trace are no operations of the record.
TEST(ExplainOutOfMemory, CountsTheOperationsOfTheRecord) {
  SteppedTrace stepped;
  stepped.trace = fragmenting_trace();
  std::vector<record::TraceOperation>& operations = stepped.trace.operations;
  const std::size_t failed = operations.size() - 1;
  operations.push_back({record::TraceAction::kFree, operations.back().allocation});
  for (const std::size_t at : {std::size_t{0}, operations.size() + 1}) {
    operations.insert(operations.begin() + static_cast<std::ptrdiff_t>(at),
                      {record::TraceAction::kStep, 0});
    stepped.added_marks.push_back(at);
  }
  const auto explanation = explain_out_of_memory(stepped, 24 * kPageBytes);
  ASSERT_TRUE(explanation.has_value());
  EXPECT_EQ(explanation->failed_operation, failed);
  EXPECT_EQ(explanation->fixes.later_operation_count, 1u);
}

// Later requests need far more than the one that fails first. The capacity that is named must be
// enough for all of them.
TEST(ExplainOutOfMemory, TheCapacityThatItNamesHoldsTheWholeTrace) {
  record::MemoryTrace trace = fragmenting_trace();
  const auto last = static_cast<std::uint32_t>(trace.allocations.size() - 1);
  trace.operations.push_back({record::TraceAction::kFree, last});
  trace.allocations.push_back({.bytes = 900 * kPageBytes, .stream = 71});
  trace.operations.push_back({record::TraceAction::kAlloc, last + 1});
  const std::uint64_t capacity_bytes = 24 * kPageBytes;
  const auto explanation = explain(trace, capacity_bytes);
  ASSERT_TRUE(explanation.has_value());
  EXPECT_EQ(explanation->failed_operation, trace.operations.size() - 3);
  EXPECT_EQ(explanation->fixes.later_operation_count, 2u);
  const auto verified = explanation->fixes.verified();
  ASSERT_EQ(verified.size(), 1u);
  EXPECT_EQ(verified[0].change, allocator::OomChange::kLargerDevice);
  EXPECT_GT(verified[0].bytes, 880 * kPageBytes);
  const std::uint64_t enough_bytes = capacity_bytes + verified[0].bytes;
  EXPECT_FALSE(explain(trace, enough_bytes).has_value());
  EXPECT_TRUE(explain(trace, enough_bytes - kPageBytes).has_value());
}

}  // namespace
}  // namespace sluice::replay
