#include "base/topology.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>
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

// Exit statuses of a child that reads the topology where /sys is empty.
constexpr int kNoNamespaces = 77;
constexpr int kFoundNothing = 1;

[[noreturn]] void read_without_sys(int messages) {
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) _exit(kNoNamespaces);
  if (mount("none", "/sys", "tmpfs", 0, nullptr) != 0) _exit(kNoNamespaces);
  dup2(messages, STDERR_FILENO);
  _exit(read_host_topology().cores >= 1 ? 0 : kFoundNothing);
}

TEST(Topology, PrintsNothingWhereSysIsEmpty) {
  std::array<int, 2> messages{};
  ASSERT_EQ(pipe2(messages.data(), O_CLOEXEC), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) read_without_sys(messages[1]);
  close(messages[1]);
  std::string printed(4096, '\0');
  const ssize_t bytes = read(messages[0], printed.data(), printed.size());
  close(messages[0]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNoNamespaces) GTEST_SKIP() << "may not make a mount namespace";
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(bytes, 0) << printed.c_str();
}

}  // namespace
}  // namespace sluice
