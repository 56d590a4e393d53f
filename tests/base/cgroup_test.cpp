#include "base/cgroup.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace sluice {
namespace {

namespace fs = std::filesystem;

// A made-up root directory with the files that the kernel would show.
class CgroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) /
            ("sluice_cgroup_" + std::to_string(getpid()) + "_" +
             ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }

  fs::path root_;
};

constexpr const char* kMountV2 =
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";

TEST_F(CgroupTest, Version2TakesTheLeastOfAllAncestors) {
  write("proc/self/mountinfo", std::string("1 0 8:1 / / rw - ext4 /dev/sda1 rw\n") + kMountV2);
  write("proc/self/cgroup", "0::/user/job\n");
  write("sys/fs/cgroup/memory.max", "max\n");
  write("sys/fs/cgroup/user/memory.max", "1000\n");
  write("sys/fs/cgroup/user/memory.current", "900\n");
  write("sys/fs/cgroup/user/memory.stat", "anon 5\ninactive_file 200\nactive_file 100\n");
  write("sys/fs/cgroup/user/job/memory.max", "800\n");
  write("sys/fs/cgroup/user/job/memory.current", "100\n");
  const CgroupMemory memory = read_cgroup_memory(root_);
  EXPECT_EQ(memory.limit_bytes, 800u);
  EXPECT_EQ(memory.left_bytes, 400u);  // of /user: 1000 - (900 - 300), less than 800 - 100
}

TEST_F(CgroupTest, Version1ReadsTheMemoryController) {
  write("proc/self/mountinfo",
        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n");
  write("proc/self/cgroup", "4:memory:/job\n1:cpu:/other\n0::/\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "5000\n");
  write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "7000\n");
  const CgroupMemory memory = read_cgroup_memory(root_);
  EXPECT_EQ(memory.limit_bytes, 5000u);
  EXPECT_EQ(memory.left_bytes, 0u);  // over the limit: nothing, not a wrapped number
}

TEST_F(CgroupTest, AContainerSeesOnlyItsPartOfTheTree) {
  write("proc/self/mountinfo", "35 31 0:32 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n");
  write("proc/self/cgroup", "0::/docker/abc\n");
  write("sys/fs/cgroup/memory.max", "300\n");
  write("sys/fs/cgroup/memory.current", "100\n");
  const CgroupMemory memory = read_cgroup_memory(root_);
  EXPECT_EQ(memory.limit_bytes, 300u);
  EXPECT_EQ(memory.left_bytes, 200u);
}

TEST_F(CgroupTest, NoFilesOrBrokenFilesMeanNoLimit) {
  EXPECT_EQ(read_cgroup_memory(root_).limit_bytes, 0u);
  write("proc/self/mountinfo",
        std::string("\n-\ngarbage\n1 2 3\n35 31 0:32 / / - cgroup2\n") + kMountV2);
  write("proc/self/cgroup", "::\nnonsense\n0::/../../escape\n");
  write("sys/fs/cgroup/memory.max", "-5\n");
  const CgroupMemory memory = read_cgroup_memory(root_);
  EXPECT_EQ(memory.limit_bytes, 0u);
  EXPECT_EQ(memory.left_bytes, std::numeric_limits<std::uint64_t>::max());
}

}  // namespace
}  // namespace sluice
