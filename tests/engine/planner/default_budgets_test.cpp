// Budgets that the configuration leaves to the machine.
#include "engine/planner/default_budgets.hpp"

#include <gtest/gtest.h>

#include "engine/planner/price/bundled_profiles.hpp"

namespace sluice::planner {
namespace {

using Origin = config::Config::BudgetOrigin;
using Budgets = std::array<std::uint64_t, kTierCount>;

Budgets budgets_of(const config::Config& config) {
  return {config.memory.device_bytes, config.memory.pinned_bytes, config.memory.storage_bytes};
}

config::Config described(const std::string& profile) {
  config::Config config;
  settle_auto_budgets(config, load_named_profile(profile, SLUICE_HARDWARE_PROFILES));
  return config;
}

TEST(DefaultBudgets, OfAProfileAreItsMemoryLessAReserve) {
  const config::Config config = described("rtx4090-64g-1nvme");
  // 24,564 MiB less 1.5 GiB; 7/8 of 64 GiB; 7/8 of 3.84 TB.
  EXPECT_EQ(budgets_of(config), (Budgets{22 * kGiB, 56 * kGiB, 3129 * kGiB}));
  for (const Origin origin : config.memory.budget_origins) EXPECT_EQ(origin, Origin::kProfile);
}

TEST(DefaultBudgets, RanksOfANodeShareItsMemoryAndItsDrives) {
  // 7/8 of 2 TiB and of 30.72 TB, for each of 8 ranks.
  EXPECT_EQ(budgets_of(described("dgx-a100")), (Budgets{80384 * kMiB, 224 * kGiB, 3129 * kGiB}));
}

TEST(DefaultBudgets, AProfileWithoutSizesGivesAssumedBudgetsAndSaysSo) {
  config::Config config;
  config.memory.pinned_bytes = 5 * kGiB;
  settle_auto_budgets(config, HardwareProfile{});
  EXPECT_EQ(budgets_of(config), (Budgets{kGiB, 5 * kGiB, kMostAutoStorageBytes}));
  EXPECT_EQ(config.memory.budget_origins,
            (std::array{Origin::kAssumed, Origin::kGiven, Origin::kAssumed}));
}

TEST(DefaultBudgets, AGpuHereKeepsItsMemoryLessAReserve) {
  config::Config config;
  settle_auto_budgets(config, {64 * kGiB, 200 * kGiB, 23 * kGiB});
  EXPECT_EQ(budgets_of(config), (Budgets{22 * kGiB, 56 * kGiB, kMostAutoStorageBytes}));
  EXPECT_EQ(config.memory.budget_origins[0], Origin::kMachine);
  config::Config small;  // the reserve is never more than an eighth
  settle_auto_budgets(small, {64 * kGiB, 200 * kGiB, 1 * kGiB});
  EXPECT_EQ(small.memory.device_bytes, 896 * kMiB);
}

// On the CPU both tiers are the host's memory: together never more than is there.
TEST(DefaultBudgets, DeviceAndPinnedShareTheHostsMemoryOnACpu) {
  const RankRoom room{16 * kGiB, 10 * kGiB, {}};
  config::Config both;
  settle_auto_budgets(both, room);
  EXPECT_EQ(budgets_of(both), (Budgets{7 * kGiB, 7 * kGiB, 10 * kGiB}));
  config::Config device;
  device.memory.device_bytes = 2 * kGiB;
  settle_auto_budgets(device, room);
  EXPECT_EQ(device.memory.pinned_bytes, 12 * kGiB);
  config::Config pinned;
  pinned.memory.pinned_bytes = 40 * kGiB;  // refused afterwards, by the check of the machine
  settle_auto_budgets(pinned, room);
  EXPECT_EQ(pinned.memory.device_bytes, 0U);
}

}  // namespace
}  // namespace sluice::planner
