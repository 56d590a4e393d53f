#include "tools/replay/replay_packing.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/replay/lifetime_csv.hpp"

namespace sluice::replay {
namespace {

using nlohmann::json;

TEST(ReplayPacking, APolicyThatKnowsTheFutureNeedsLess) {
  // The online policy puts the second buffer after the first, so the third finds no gap.
  const std::vector<packing::Lifetime> lifetimes{{0, 2, 4}, {1, 4, 1}, {3, 5, 5}};
  const json event = replay_packing(lifetimes, "given.csv", 6);
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
  const std::string table = replay_table(event);
  for (const char* word : {"given.csv", "online", "planned", "too large", "fits", "66.67%"}) {
    EXPECT_NE(table.find(word), std::string::npos) << table;
  }
}

class MiniMallocInstance : public ::testing::TestWithParam<const char*> {};

// Greedy orders and a local search miss the capacity by 10 to 34%.
TEST_P(MiniMallocInstance, PacksAtThePublishedCapacity) {
  const std::string path = std::string(SLUICE_TEST_DATA "/minimalloc/") + GetParam() + ".csv";
  constexpr std::uint64_t kCapacityBytes = 1 << 20;
  const json event = replay_packing(read_lifetime_csv(path), path, kCapacityBytes);
  EXPECT_EQ(event.at("policies")[1].at("fits"), false);
  EXPECT_EQ(event.at("policies")[2].at("fits"), true);
  EXPECT_LE(event.at("peak_live_bytes"), kCapacityBytes);
}

INSTANTIATE_TEST_SUITE_P(All, MiniMallocInstance,
                         ::testing::Values("A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K"));

}  // namespace
}  // namespace sluice::replay
