#include "base/numa.hpp"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <numeric>
#include <thread>

#include "base/error.hpp"
#include "base/topology.hpp"

namespace sluice {
namespace {

std::vector<int> from_to(int first, int last) {
  std::vector<int> cpus(static_cast<std::size_t>(last - first + 1));
  std::iota(cpus.begin(), cpus.end(), first);
  return cpus;
}

TEST(Numa, NodesHaveTheirOwnCpusAndMemory) {
  const auto machine = make_synthetic_numa_machine("node:2(memory=64GiB) core:4 pu:2");
  ASSERT_EQ(machine->nodes().size(), 2u);
  for (int i = 0; i < 2; ++i) {
    const NumaNode& node = machine->nodes()[static_cast<std::size_t>(i)];
    EXPECT_EQ(node.os_index, i);
    EXPECT_EQ(node.memory_bytes, std::uint64_t{64} << 30);
    EXPECT_FALSE(node.memory_only);
    EXPECT_EQ(node.cpus, from_to(8 * i, 8 * i + 7));
  }
}

// HBM next to the DRAM of each package: hwloc gives both the package's processing units.
TEST(Numa, TheSecondMemoryOfAPackageIsMemoryOnly) {
  const auto machine = make_synthetic_numa_machine(
      "pack:2 [numa(memory=4294967296)] [numa(memory=1073741824)] core:2 pu:1");
  const auto nodes = machine->nodes();
  ASSERT_EQ(nodes.size(), 4u);
  std::vector<int> cpus;
  for (const NumaNode& node : nodes) {
    EXPECT_EQ(node.memory_only, node.memory_bytes == std::uint64_t{1} << 30);
    EXPECT_EQ(node.memory_only, node.cpus.empty());
    cpus.insert(cpus.end(), node.cpus.begin(), node.cpus.end());
  }
  EXPECT_EQ(cpus, from_to(0, 3));
}

TEST(Numa, RefusesADescriptionThatIsNone) {
  EXPECT_THROW(make_synthetic_numa_machine("nonsense:-1"), InputError);
  EXPECT_THROW(make_synthetic_numa_machine(""), InputError);
}

TEST(Numa, ThisMachineAgreesWithTheSystem) {
  const auto machine = read_numa_machine();
  EXPECT_EQ(machine->nodes().size(), static_cast<std::size_t>(read_host_topology().numa_nodes));
  cpu_set_t mine;
  ASSERT_EQ(sched_getaffinity(0, sizeof(mine), &mine), 0);
  int cpus = 0;
  for (const NumaNode& node : machine->nodes()) {
    for (const int cpu : node.cpus) {
      EXPECT_TRUE(CPU_ISSET(static_cast<std::size_t>(cpu), &mine)) << cpu;
      ++cpus;
    }
  }
  EXPECT_EQ(cpus, CPU_COUNT(&mine));
}

TEST(Numa, CpusThatTheProcessMayNotUseAreNotListed) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  if (CPU_COUNT(&before) < 2) GTEST_SKIP() << "one processing unit";
  int kept = 0;
  while (CPU_ISSET(static_cast<std::size_t>(kept), &before) == 0) ++kept;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(kept), &one);
  std::vector<int> cpus;
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  const auto machine = read_numa_machine();
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
  for (const NumaNode& node : machine->nodes()) {
    EXPECT_FALSE(node.memory_only && !node.cpus.empty());
    cpus.insert(cpus.end(), node.cpus.begin(), node.cpus.end());
  }
  EXPECT_EQ(cpus, std::vector<int>{kept});
}

// A preference and no prison: see bind_memory.
TEST(Numa, MemoryPrefersItsNode) {
  const auto machine = read_numa_machine();
  constexpr std::uint64_t kBytes = 1 << 20;
  void* data = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(data, MAP_FAILED);
  const int refused = machine->bind_memory(data, kBytes, 0);
  int mode = -1;
  const long read = syscall(SYS_get_mempolicy, &mode, nullptr, 0, data, MPOL_F_ADDR);
  ASSERT_EQ(munmap(data, kBytes), 0);
  if (refused != 0) GTEST_SKIP() << "mbind: " << std::strerror(refused);
  ASSERT_EQ(read, 0);
  EXPECT_TRUE(mode == MPOL_PREFERRED || mode == MPOL_PREFERRED_MANY) << mode;
}

TEST(Numa, FindsThePageThatIsThereAndNoOther) {
  const auto machine = read_numa_machine();
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* data = mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(data, MAP_FAILED);
  ASSERT_EQ(madvise(data, 2 * page, MADV_NOHUGEPAGE), 0);
  static_cast<char*>(data)[0] = 1;
  const void* const addresses[] = {static_cast<char*>(data) + 8, static_cast<char*>(data) + page};
  int found[] = {-2, -2};
  const int refused = machine->find_pages(addresses, found);
  ASSERT_EQ(munmap(data, 2 * page), 0);
  if (refused != 0) GTEST_SKIP() << "move_pages: " << std::strerror(refused);
  EXPECT_GE(found[0], 0);
  EXPECT_LT(found[0], static_cast<int>(machine->nodes().size()));
  EXPECT_EQ(found[1], -1);
  EXPECT_EQ(has_several_numa_nodes(), machine->nodes().size() > 1);
}

TEST(Numa, AThreadRunsOnTheCpusOfItsNode) {
  const auto machine = read_numa_machine();
  const NumaNode& node = machine->nodes().front();
  if (node.cpus.empty()) GTEST_SKIP() << "the first node has no processing unit for us";
  int refused = -1;
  cpu_set_t bound;
  CPU_ZERO(&bound);
  std::jthread([&] {
    refused = machine->bind_this_thread(0);
    sched_getaffinity(0, sizeof(bound), &bound);
  }).join();
  ASSERT_EQ(refused, 0) << std::strerror(refused);
  EXPECT_EQ(CPU_COUNT(&bound), static_cast<int>(node.cpus.size()));
  for (const int cpu : node.cpus) EXPECT_TRUE(CPU_ISSET(static_cast<std::size_t>(cpu), &bound));
}

TEST(Numa, ANodeWithoutCpusBindsNoThread) {
  const auto machine = make_synthetic_numa_machine(
      "pack:1 [numa(memory=4294967296)] [numa(memory=1073741824)] core:1 pu:1");
  ASSERT_TRUE(machine->nodes()[1].memory_only);
  EXPECT_EQ(machine->bind_this_thread(1), EINVAL);
}

}  // namespace
}  // namespace sluice
