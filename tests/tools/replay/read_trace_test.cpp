#include "tools/replay/read_trace.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "allocator/record/format/torch_snapshot.hpp"
#include "base/error.hpp"
#include "tests/support/check_trace.hpp"
#include "tests/support/temp_directory.hpp"
#include "tests/support/thrown.hpp"

namespace sluice::replay {
namespace {

class ReadTraceFile : public ::testing::Test {
 protected:
  std::string file(const std::string& content) {
    std::string path = (directory_.path() / "given").string();
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  ReadTrace read(const std::string& content) {
    ReadTrace result = read_trace(file(content));
    testing::check_trace(result.trace);
    return result;
  }
  std::string refusal(const std::string& content) {
    return testing::refusal_of([&] { return read(content); });
  }

 private:
  testing::TempDirectory directory_;
};

TEST_F(ReadTraceFile, RecognisesEachFormatByItsContent) {
  record::MemorySnapshot snapshot;
  snapshot.events.push_back({.address = 512, .bytes = 7});
  std::string pickle;
  record::write_torch_snapshot(snapshot, [&](std::string_view part) { pickle += part; });
  const std::pair<std::string, const char*> cases[] = {
      {pickle, "torch"},
      // pickle.dumps({'segments': [], 'device_traces': [[{'action': 'alloc', 'addr': 512,
      // 'size': 7}]]}, protocol=0)
      {"(dp0\nVsegments\np1\n(lp2\nsVdevice_traces\np3\n(lp4\n(lp5\n(dp6\nVaction\np7\nValloc\np8\n"
       "sVaddr\np9\nI512\nsVsize\np10\nI7\nsaas.",
       "torch"},
      {"time_ns,action,stream,address,bytes,category,name\n0,alloc,0,512,7,external,\n", "sluice"},
      {"Thread,Time,Action,Pointer,Size,Stream\n1,0:0:0:0,allocate,0x200,7,0\n", "rmm"},
      {"\xef\xbb\xbfid,lower,upper,size\n0,1,2,7\n", "lifetimes"},
  };
  for (const auto& [content, format] : cases) {
    const ReadTrace result = read(content);
    EXPECT_EQ(result.trace.format, format);
    EXPECT_FALSE(result.trace.source.empty());
    ASSERT_EQ(result.trace.allocations.size(), 1u) << format;
    EXPECT_EQ(result.trace.allocations[0].bytes, 7u);
  }
}

TEST_F(ReadTraceFile, RefusesOtherFilesAndNamesTheirKind) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "is empty"},
      {std::string("PK\x03\x04") + "rest", "is a zip archive"},
      {"\x1f\x8b", "is compressed by gzip"},
      {"{\"traceEvents\": []}", "looks like JSON"},
      {"<!DOCTYPE html>", "looks like HTML"},
      {"a,b,c\n1,2,3\n", "is not a memory trace"},
  };
  for (const auto& [content, expected] : cases) {
    EXPECT_TRUE(testing::mentions(refusal(content), expected));
    for (const char* known : {"PyTorch", "RMM", "time_ns,action", "id,lower,upper,size"}) {
      EXPECT_TRUE(testing::mentions(refusal(content), known));
    }
  }
  EXPECT_TRUE(testing::mentions(refusal("\x80\x04"), "byte 2: ends before its STOP"));
  EXPECT_THROW(static_cast<void>(read_trace("/nowhere/given")), InputError);
  EXPECT_THROW(static_cast<void>(read_trace("/dev/null")), InputError);
}

TEST_F(ReadTraceFile, TheDeviceIsAnOption) {
  record::MemorySnapshot snapshot;
  snapshot.device = 1;
  snapshot.events.push_back({.address = 512, .bytes = 7});
  std::string pickle;
  record::write_torch_snapshot(snapshot, [&](std::string_view part) { pickle += part; });
  const std::string path = file(pickle);
  EXPECT_EQ(read_trace(path).trace.operations.size(), 1u);
  EXPECT_EQ(read_trace(path, {.device = 0}).trace.operations.size(), 0u);
  EXPECT_THROW(static_cast<void>(read_trace(path, {.device = 2})), InputError);
}

TEST(TraceOfLifetimes, FreesComeBeforeAllocationsAtOnePosition) {
  const std::vector<packing::Lifetime> lifetimes{{5, 9, 10}, {1, 5, 20}, {1, 7, 30}};
  const record::MemoryTrace trace = trace_of_lifetimes(lifetimes, "given");
  testing::check_trace(trace);
  std::string operations;
  for (const record::TraceOperation& operation : trace.operations) {
    operations += operation.action == record::TraceAction::kAlloc ? 'a' : 'f';
    operations += std::to_string(operation.allocation);
  }
  EXPECT_EQ(operations, "a1a2f1a0f2f0");
  EXPECT_EQ(record::peak_live_bytes(trace), 50u);
}

}  // namespace
}  // namespace sluice::replay
