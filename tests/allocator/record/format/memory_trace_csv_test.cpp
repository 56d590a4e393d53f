#include "allocator/record/format/memory_trace_csv.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "allocator/record/memory_action_names.hpp"
#include "base/error.hpp"
#include "tests/support/temp_directory.hpp"
#include "tests/support/thrown.hpp"

namespace sluice::record {
namespace {

MemorySnapshot parse(const std::string& text) {
  ByteSource source(text, "given.csv");
  return read_memory_trace_csv(source);
}

std::string refusal(const std::string& text) {
  return testing::refusal_of([&] { return parse(text); });
}

std::string csv(const MemorySnapshot& snapshot) {
  std::ostringstream out;
  write_memory_trace_csv(snapshot, out);
  return out.str();
}

// The header of files without pools.
constexpr std::string_view kOlderHeader = "time_ns,action,stream,address,bytes,category,name";
const std::string kHeader = std::string(kOlderHeader) + "\n";
const std::string kFullHeader = std::string(kMemoryTraceCsvHeader) + "\n";

TEST(MemoryTraceCsv, EveryEventIsReadBack) {
  MemorySnapshot snapshot;
  snapshot.names = {"", "plain", "a,b", "say \"so\"", "two\nlines", " edge ", "\xc3\xa9"};
  for (std::uint8_t action = 0; action < kMemoryActionNames.size(); ++action) {
    snapshot.events.push_back({.action = static_cast<MemoryAction>(action),
                               .category = static_cast<Category>(action % kCategoryCount),
                               .pool = static_cast<std::uint16_t>(action == 2 ? UINT16_MAX : 0),
                               .name = action % 7u,
                               .stream = action == 3 ? UINT64_MAX : action,
                               .address = 0x7f0000000000u + action,
                               .bytes = std::uint64_t{1} << (action * 6),
                               .time_ns = action == 1 ? INT64_MIN : action * 1000});
  }
  const MemorySnapshot again = parse(csv(snapshot));
  ASSERT_EQ(again.events.size(), snapshot.events.size());
  for (std::size_t i = 0; i < snapshot.events.size(); ++i) {
    const MemoryEvent& a = snapshot.events[i];
    const MemoryEvent& b = again.events[i];
    EXPECT_EQ(a.action, b.action);
    EXPECT_EQ(a.category, b.category);
    EXPECT_EQ(a.pool, b.pool);
    EXPECT_EQ(snapshot.names[a.name], again.names[b.name]);
    EXPECT_EQ(a.stream, b.stream);
    EXPECT_EQ(a.address, b.address);
    EXPECT_EQ(a.bytes, b.bytes);
    EXPECT_EQ(a.time_ns, b.time_ns);
  }
  EXPECT_EQ(csv(again), csv(snapshot));
}

TEST(MemoryTraceCsv, ALineLooksAsTheHeaderSays) {
  MemorySnapshot snapshot;
  snapshot.names.emplace_back("a,b");
  snapshot.events.push_back(
      {.category = Category::kWeight, .name = 1, .stream = 7, .address = 255, .bytes = 512});
  EXPECT_EQ(csv(snapshot), kFullHeader + "0,alloc,7,0xff,512,weight,\"a,b\",0\n");
}

TEST(MemoryTraceCsv, LineEndsMarksAndEmptyLinesAreIgnored) {
  const MemorySnapshot snapshot = parse("\xef\xbb\xbf" + std::string(kOlderHeader) +
                                        "\r\n\r\n5, alloc ,0x10,16,1,external,\"n\"\r\n\n"
                                        "6,step,0,0,0,external,");
  ASSERT_EQ(snapshot.events.size(), 2u);
  EXPECT_EQ(snapshot.events[0].stream, 16u);
  EXPECT_EQ(snapshot.names[snapshot.events[0].name], "n");
  EXPECT_EQ(snapshot.events[1].action, MemoryAction::kStep);
}

TEST(MemoryTraceCsv, NamesTheLineOfAnError) {
  const std::string good = "1,alloc,0,0x10,1,external,\n";
  const std::pair<std::string, const char*> cases[] = {
      {"", "line 1: the first line must be time_ns,action"},
      {"a,b\n", "line 1: the first line must be time_ns,action"},
      {kHeader + good + "1,alloc,0,0x10,1,external\n", "line 3: must have 7 fields, not 6"},
      {kFullHeader + good, "line 2: must have 8 fields, not 7"},
      {kFullHeader + "1,alloc,0,0x10,1,external,,65536\n", "pool '65536' must be below 65536"},
      {kHeader + "x,alloc,0,0,1,external,\n", "line 2: time_ns 'x' must be a whole number"},
      {kHeader + "1,malloc,0,0,1,external,\n", "action 'malloc' must be one of alloc"},
      {kHeader + "1,alloc,-1,0,1,external,\n", "stream '-1'"},
      {kHeader + "1,alloc,0,0xg,1,external,\n", "address '0xg'"},
      {kHeader + "1,alloc,0,0,18446744073709551616,external,\n", "bytes '18446744073709551616'"},
      {kHeader + "1,alloc,0,0,1,mine,\n", "category 'mine'"},
      {kHeader + "1,free_requested,0,64,72057594037927937,external,\n",
       "line 2: bytes '72057594037927937' must be at most 72057594037927936 (65536 TiB): no "
       "address space is larger"},
      {kHeader + "1,oom,0,0,18446744073709551615,external,\n1,segment_alloc,0,512,1e9,external,\n",
       "line 3: bytes '1e9'"},
      {kHeader + "1,alloc,0,0,1,external,\"open\n", "line 2: a quote must be closed"},
      {kHeader + "1,alloc,0,0,1,external,\"a\"b\n", "a comma must follow"},
      {kHeader + "1,alloc,0,0,1,external,\"a\nb\"\n1,free,0,0,1,external,\n", "line 4: action"},
      {kHeader + "1,alloc,0,0,1,external," + std::string(70'000, 'n'), "above 64 KiB"},
  };
  testing::expect_refusals(cases, "given.csv", refusal);
}

TEST(MemoryTraceCsv, AFileIsReadInPieces) {
  const testing::TempDirectory directory;
  const std::string path = (directory.path() / "events.csv").string();
  {
    std::ofstream out(path, std::ios::binary);
    out << kHeader;
    // The file is larger than the reader's buffer, which ends inside a quoted name.
    for (int i = 0; i < 20'000; ++i) {
      out << i << ",alloc,0," << i << ",8,external,\"name \"\"" << i % 100 << "\"\"\"\n";
    }
  }
  const MemorySnapshot snapshot = read_memory_trace_csv(path);
  ASSERT_EQ(snapshot.events.size(), 20'000u);
  EXPECT_EQ(snapshot.names.size(), 101u);
  EXPECT_EQ(snapshot.names[snapshot.events[19'999].name], "name \"99\"");
  EXPECT_EQ(snapshot.events[19'999].address, 19'999u);
  EXPECT_THROW(static_cast<void>(read_memory_trace_csv(path + ".no")), InputError);
  EXPECT_THROW(static_cast<void>(read_memory_trace_csv(directory.path().string())), InputError);
}

}  // namespace
}  // namespace sluice::record
