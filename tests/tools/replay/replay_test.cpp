#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "tests/support/temp_directory.hpp"
#include "tools/replay/lifetime_csv.hpp"
#include "tools/replay/replay_packing.hpp"

namespace sluice::testing {
namespace {

using nlohmann::json;

std::string refusal(const std::string& text) {
  try {
    static_cast<void>(replay::parse_lifetime_csv(text, "given.csv"));
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(LifetimeCsv, ColumnsStandInAnyOrder) {
  const auto lifetimes =
      replay::parse_lifetime_csv("size, id,upper,lower\r\n7,a,5,1\r\n\n9,b,6,2\n", "x");
  ASSERT_EQ(lifetimes.size(), 2u);
  EXPECT_EQ(lifetimes[0].lower, 1u);
  EXPECT_EQ(lifetimes[0].upper, 5u);
  EXPECT_EQ(lifetimes[0].bytes, 7u);
  EXPECT_EQ(lifetimes[1].bytes, 9u);
}

TEST(LifetimeCsv, AByteOrderMarkIsNoPartOfTheHeader) {
  EXPECT_EQ(replay::parse_lifetime_csv("\xef\xbb\xbfid,lower,upper,size\n0,1,2,3\n", "x").size(),
            1u);
}

TEST(LifetimeCsv, WhatIsWrongIsNamedWithItsLine) {
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
  for (const auto& [text, expected] : cases) {
    EXPECT_NE(refusal(text).find(expected), std::string::npos) << text << refusal(text);
    EXPECT_NE(refusal(text).find("given.csv"), std::string::npos);
  }
  EXPECT_THROW(static_cast<void>(replay::read_lifetime_csv("/nowhere/given.csv")), InputError);
  EXPECT_THROW(static_cast<void>(replay::read_lifetime_csv(TempDirectory().path().string())),
               InputError);
}

TEST(ReplayPacking, APolicyThatKnowsTheFutureNeedsLess) {
  // Online, the second buffer follows the first, and the third finds no gap of its size.
  const std::vector<packing::Lifetime> lifetimes{{0, 2, 4}, {1, 4, 1}, {3, 5, 5}};
  const json event = replay::replay_packing(lifetimes, "given.csv", 6);
  EXPECT_EQ(event.at("buffers"), 3);
  EXPECT_EQ(event.at("peak_live_bytes"), 6);
  const json& policies = event.at("policies");
  ASSERT_EQ(policies.size(), 3u);
  EXPECT_EQ(policies[0].at("policy"), "online");
  EXPECT_EQ(policies[0].at("capacity_bytes"), 10);
  EXPECT_EQ(policies[0].at("fits"), false);
  for (const std::size_t i : {1u, 2u}) {
    EXPECT_EQ(policies[i].at("capacity_bytes"), 6);
    EXPECT_EQ(policies[i].at("above_peak_live"), 0.0);
    EXPECT_EQ(policies[i].at("fits"), true);
  }
  const std::string table = replay::replay_table(event);
  for (const char* word : {"given.csv", "online", "planned", "too large", "fits", "66.67%"}) {
    EXPECT_NE(table.find(word), std::string::npos) << table;
  }
}

class MiniMallocInstance : public ::testing::TestWithParam<const char*> {};

// Greedy orders and a local search miss the capacity by 10 to 34%.
TEST_P(MiniMallocInstance, PacksAtThePublishedCapacity) {
  const std::string path = std::string(SLUICE_TEST_DATA "/minimalloc/") + GetParam() + ".csv";
  constexpr std::uint64_t kCapacityBytes = 1 << 20;
  const json event = replay::replay_packing(replay::read_lifetime_csv(path), path, kCapacityBytes);
  EXPECT_EQ(event.at("policies")[1].at("fits"), false);
  EXPECT_EQ(event.at("policies")[2].at("fits"), true);
  EXPECT_LE(event.at("peak_live_bytes"), kCapacityBytes);
}

INSTANTIATE_TEST_SUITE_P(All, MiniMallocInstance,
                         ::testing::Values("A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K"));

}  // namespace
}  // namespace sluice::testing
