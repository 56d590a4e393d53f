#include "base/topology.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <thread>

namespace sluice {
namespace {

TEST(Topology, AgreesWithTheSystem) {
  const HostTopology host = read_host_topology();
  EXPECT_GE(host.cores, 1);
  EXPECT_LE(host.cores, static_cast<int>(std::thread::hardware_concurrency()));
  EXPECT_GE(host.numa_nodes, 1);
  EXPECT_FALSE(host.cpu_name.empty());
  const auto pages = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES));
  const auto page_bytes = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  // Not equal: a container may be shown less in /proc than the kernel has.
  EXPECT_GT(host.memory_bytes, 0u);
  EXPECT_LE(host.memory_bytes, pages * page_bytes);
  EXPECT_GT(host.available_bytes, 0u);
  EXPECT_LE(host.available_bytes, host.memory_bytes);
  if (host.cgroup_limit_bytes != 0) {
    EXPECT_LE(host.available_bytes, host.cgroup_limit_bytes);
  }
}

TEST(Topology, ReportsTheMemlockLimit) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &before), 0);
  rlimit lowered = before;
  lowered.rlim_cur = 64 * 1024;
  if (before.rlim_max < lowered.rlim_cur) GTEST_SKIP() << "the hard limit is below 64 KiB";
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &lowered), 0);
  EXPECT_EQ(read_host_topology().memlock_limit_bytes, 64u * 1024);
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &before), 0);
}

}  // namespace
}  // namespace sluice
