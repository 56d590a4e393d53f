#include "tools/replay/lifetime_csv.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>
#include <utility>

#include "base/error.hpp"
#include "tests/support/temp_directory.hpp"
#include "tests/support/thrown.hpp"

namespace sluice::replay {
namespace {

std::string refusal(const std::string& text) {
  return testing::refusal_of([&] { return parse_lifetime_csv(text, "given.csv"); });
}

TEST(LifetimeCsv, ColumnsStandInAnyOrder) {
  const auto lifetimes = parse_lifetime_csv("size, id,upper,lower\r\n7,a,5,1\r\n\n9,b,6,2\n", "x");
  ASSERT_EQ(lifetimes.size(), 2u);
  EXPECT_EQ(lifetimes[0].lower, 1u);
  EXPECT_EQ(lifetimes[0].upper, 5u);
  EXPECT_EQ(lifetimes[0].bytes, 7u);
  EXPECT_EQ(lifetimes[1].bytes, 9u);
}

TEST(LifetimeCsv, AByteOrderMarkIsNotPartOfTheHeader) {
  EXPECT_EQ(parse_lifetime_csv("\xef\xbb\xbfid,lower,upper,size\n0,1,2,3\n", "x").size(), 1u);
}

TEST(LifetimeCsv, NamesTheLineOfAnError) {
  const std::string header = "id,lower,upper,size\n";
  const std::pair<std::string, const char*> cases[] = {
      {"", "names no buffer"},
      {header, "names no buffer"},
      {"buffer,start,end,size\n0,1,2,3\n", "line 1: the first line must be exactly"},
      {header + "0,1,2\n", "line 2: must have 4 fields, not 3"},
      {header + "0,1,2,3\n1,-1,2,3\n", "line 3: lower '-1' must be a whole number"},
      {header + "0,1,2.5,3\n", "upper '2.5'"},
      {header + "0,1,2,18446744073709551616\n", "size '18446744073709551616'"},
      {header + "0,2,2,3\n", "upper must be above lower"},
      {header + "0,1,2,0\n", "size must be above 0"},
      {header + "0,1,2,4611686018427387903\n1,1,2,1\n", "line 3: all sizes must be below 2^62"},
  };
  testing::expect_refusals(cases, "given.csv", refusal);
  EXPECT_THROW(static_cast<void>(read_lifetime_csv("/nowhere/given.csv")), InputError);
  const testing::TempDirectory directory;
  EXPECT_THROW(static_cast<void>(read_lifetime_csv(directory.path().string())), InputError);
  // Without a writer a read of a FIFO would wait forever.
  const std::string fifo = directory.file("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THROW(static_cast<void>(read_lifetime_csv(fifo)), InputError);
}

}  // namespace
}  // namespace sluice::replay
