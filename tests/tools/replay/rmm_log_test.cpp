#include "tools/replay/rmm_log.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "tests/support/check_trace.hpp"
#include "tests/support/thrown.hpp"

namespace sluice::replay {
namespace {

record::MemorySnapshot parse(const std::string& text) {
  record::ByteSource source(text, "given.csv");
  return read_rmm_log(source);
}

record::MemoryTrace trace(const std::string& text, record::TraceDefects* defects = nullptr) {
  record::MemoryTrace result = record::trace_of(parse(text), "given.csv", "rmm", defects);
  testing::check_trace(result);
  return result;
}

std::string refusal(const std::string& text) {
  return testing::refusal_of([&] { return parse(text); });
}

const std::string kHeader = "Thread,Time,Action,Pointer,Size,Stream\n";

TEST(RmmLog, AllocationsEndWithTheirFrees) {
  record::TraceDefects defects;
  const record::MemoryTrace result = trace(kHeader +
                                               "8081,13:04:05:000123,allocate,0x7f00,100,0\n"
                                               "8081,13:04:05:000124,allocate,0x7f80,200,0x2\n"
                                               "8082,13:04:05:000125,free,0x7f00,100,0\n"
                                               "8082,13:04:05:000126,allocate failure,(nil),900,0\n"
                                               "8082,13:04:05:000127,allocate,0x7f00,300,0x1\n"
                                               "8082,13:04:05:000128,allocate,(nil),0,0x1\n",
                                           &defects);
  ASSERT_EQ(result.allocations.size(), 4u);
  EXPECT_EQ(result.allocations[1].bytes, 200u);
  EXPECT_EQ(result.allocations[1].stream, 2u);
  EXPECT_EQ(result.allocations[3].address, 0x7f00u);
  ASSERT_EQ(result.operations.size(), 5u);
  EXPECT_EQ(result.operations[3].action, record::TraceAction::kRefused);
  EXPECT_EQ(result.allocations[2].bytes, 900u);
  EXPECT_EQ(record::peak_needed_bytes(result), 1100u);
  EXPECT_EQ(result.operations[2].action, record::TraceAction::kFree);
  EXPECT_EQ(result.operations[2].allocation, 0u);
  EXPECT_EQ(record::peak_live_bytes(result), 500u);
  EXPECT_EQ(defects.contradictions, 0u);
  EXPECT_EQ(result.recorded_peak_reserved_bytes, 0u);
}

TEST(RmmLog, TimesArePartsOfADay) {
  const record::MemorySnapshot log = parse(kHeader +
                                           "1,00:00:01:000002,allocate,0x1,1,0\n"
                                           "1,01:00:00.000003,allocate,0x2,1,0\n"
                                           "1,now,allocate,0x3,1,0\n");
  EXPECT_EQ(log.events.at(0).time_ns, 1'000'002'000);
  EXPECT_EQ(log.events.at(1).time_ns, 3'600'000'003'000);
  EXPECT_EQ(log.events.at(2).time_ns, 0);
}

TEST(RmmLog, ColumnsStandInAnyOrderAndOthersAreIgnored) {
  const record::MemoryTrace result = trace(
      "Size,Pointer,Action,Stream,Time,Thread,Device\n"
      "64,7fab,allocate_async,per_thread,x,1,0\n64,7fab,deallocate_async,per_thread,x,1,0\n");
  ASSERT_EQ(result.operations.size(), 2u);
  EXPECT_EQ(result.allocations[0].address, 0x7fabu);
  EXPECT_EQ(result.allocations[0].stream, UINT64_MAX);
}

TEST(RmmLog, AFreeWithoutAnAllocationIsOfEarlierMemory) {
  const record::MemoryTrace result = trace(kHeader + "1,t,free,0x1000,4096,0\n");
  ASSERT_EQ(result.initial_segments.size(), 1u);
  EXPECT_EQ(result.initial_segments[0].bytes, 4096u);
  EXPECT_EQ(record::peak_live_bytes(result), 4096u);
}

TEST(RmmLog, NamesTheLineOfAnError) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "line 1: must begin with the columns"},
      {"Thread,Time,Action,Pointer,Size\n", "line 1: the first line must name the columns"},
      {kHeader + "1,t,allocate,0x1,1\n", "line 2: must have 6 fields, not 5"},
      {kHeader + "1,t,alloc,0x1,1,0\n", "line 2: Action 'alloc' must be allocate, free"},
      {kHeader + "1,t,free,zz,1,0\n", "Pointer 'zz' must be a hexadecimal address"},
      {kHeader + "1,t,allocate failure,0x0,72057594037927937,0\n1,t,free,0x1,72057594037927937,0\n",
       "line 3: Size '72057594037927937' must be at most 72057594037927936 (65536 TiB)"},
      {kHeader + "1,t,free,0x1,-1,0\n", "Size '-1' must be a whole number of bytes"},
  };
  testing::expect_refusals(cases, "given.csv", refusal);
}

}  // namespace
}  // namespace sluice::replay
