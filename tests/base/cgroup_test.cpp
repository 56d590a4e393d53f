#include "base/cgroup.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <map>
#include <string>

#include "tests/support/temp_directory.hpp"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMountV2 =
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
constexpr std::uint64_t kAll = std::numeric_limits<std::uint64_t>::max();

struct Machine {
  const char* name;
  CgroupMemory memory;
  std::map<std::string, std::string> files;  // by path: the text that the kernel would show
};

class CgroupOf : public ::testing::TestWithParam<Machine> {};

TEST_P(CgroupOf, IsReadFromItsFiles) {
  const testing::TempDirectory root;
  for (const auto& [path, text] : GetParam().files) {
    fs::create_directories((root.path() / path).parent_path());
    std::ofstream(root.path() / path) << text;
  }
  const CgroupMemory memory = read_cgroup_memory(root.path());
  EXPECT_EQ(memory.limit_bytes, GetParam().memory.limit_bytes);
  EXPECT_EQ(memory.left_bytes, GetParam().memory.left_bytes);
}

const Machine kMachines[] = {
    {"NoFilesMeanNoLimit", {0, kAll}, {}},
    // of /user: 1000 - (900 - 300), less than 800 - 100
    {"Version2TakesTheLeastOfAllAncestors",
     {800, 400},
     {{"proc/self/mountinfo", std::string("1 0 8:1 / / rw - ext4 /dev/sda1 rw\n") + kMountV2},
      {"proc/self/cgroup", "0::/user/job\n"},
      {"sys/fs/cgroup/memory.max", "max\n"},
      {"sys/fs/cgroup/user/memory.max", "1000\n"},
      {"sys/fs/cgroup/user/memory.current", "900\n"},
      {"sys/fs/cgroup/user/memory.stat", "anon 5\ninactive_file 200\nactive_file 100\n"},
      {"sys/fs/cgroup/user/job/memory.max", "800\n"},
      {"sys/fs/cgroup/user/job/memory.current", "100\n"}}},
    // over the limit: nothing, not a wrapped number
    {"Version1ReadsTheMemoryController",
     {5000, 0},
     {{"proc/self/mountinfo",
       "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
       "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"},
      {"proc/self/cgroup", "4:memory:/job\n1:cpu:/other\n0::/\n"},
      {"sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
      {"sys/fs/cgroup/memory/job/memory.limit_in_bytes", "5000\n"},
      {"sys/fs/cgroup/memory/job/memory.usage_in_bytes", "7000\n"}}},
    {"AContainerSeesOnlyItsPartOfTheTree",
     {300, 200},
     {{"proc/self/mountinfo", "35 31 0:32 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n"},
      {"proc/self/cgroup", "0::/docker/abc\n"},
      {"sys/fs/cgroup/memory.max", "300\n"},
      {"sys/fs/cgroup/memory.current", "100\n"}}},
    {"BrokenFilesMeanNoLimit",
     {0, kAll},
     {{"proc/self/mountinfo",
       std::string("\n-\ngarbage\n1 2 3\n35 31 0:32 / / - cgroup2\n") + kMountV2},
      {"proc/self/cgroup", "::\nnonsense\n0::/../../escape\n"},
      {"sys/fs/cgroup/memory.max", "-5\n"}}},
};
INSTANTIATE_TEST_SUITE_P(All, CgroupOf, ::testing::ValuesIn(kMachines),
                         [](const auto& machine) { return machine.param.name; });

}  // namespace
}  // namespace sluice
