#include "base/core_shares.hpp"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(CoreShares, AreDisjointAndWholeCores) {
  // 2 packages, 4 cores each, 2 processors each: 16.
  for (const int shares : {1, 2, 3, 4, 8}) {
    const auto cores = share_cores(shares, "package:2 core:4 pu:2");
    ASSERT_EQ(cores.size(), static_cast<std::size_t>(shares));
    cpu_set_t all;
    CPU_ZERO(&all);
    for (const cpu_set_t& share : cores) {
      EXPECT_GE(CPU_COUNT(&share), 2);
      for (int cpu = 0; cpu < 16; cpu += 2) {
        EXPECT_EQ(CPU_ISSET(cpu, &share), CPU_ISSET(cpu + 1, &share)) << cpu;
        EXPECT_FALSE(CPU_ISSET(cpu, &share) && CPU_ISSET(cpu, &all)) << cpu;
      }
      CPU_OR(&all, &all, &share);
    }
  }
  // Neighbours together: two shares are the two packages.
  const auto halves = share_cores(2, "package:2 core:4 pu:2");
  EXPECT_EQ(describe_cpus(halves[0]), "0-7");
  EXPECT_EQ(describe_cpus(halves[1]), "8-15");
}

TEST(CoreShares, FewerCoresThanSharesBindNothing) {
  EXPECT_TRUE(share_cores(5, "core:4 pu:2").empty());
}

TEST(CoreShares, OfThisMachineLieInItsMask) {
  const auto cores = share_cores(1);
  ASSERT_EQ(cores.size(), 1u);
  cpu_set_t usable;
  ASSERT_EQ(sched_getaffinity(0, sizeof usable, &usable), 0);
  cpu_set_t both;
  CPU_AND(&both, &usable, &cores[0]);
  EXPECT_TRUE(CPU_EQUAL(&both, &cores[0]));
}

}  // namespace
}  // namespace sluice
