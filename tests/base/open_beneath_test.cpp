#include "base/open_beneath.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "tests/support/temp_directory.hpp"

namespace sluice::testing {
namespace {

namespace fs = std::filesystem;
using Open = int (*)(const std::string&, const std::string&, int);

// DIR/inside/data, DIR/outside, and links to both.
class OpenBeneath : public ::testing::TestWithParam<Open> {
 protected:
  void SetUp() override {
    fs::create_directories(directory_.path() / "inside" / "below");
    std::ofstream(directory_.file("outside")) << "secret";
    std::ofstream(directory_.file("inside/data")) << "data";
    std::ofstream(directory_.file("inside/below/data")) << "data";
    fs::create_symlink("../outside", directory_.path() / "inside" / "link_out");
    fs::create_symlink("data", directory_.path() / "inside" / "link_in");
    fs::create_symlink("inside", directory_.path() / "link_to_inside");
  }
  // 0: opened, else the errno.
  int status(const std::string& directory, const std::string& name) const {
    const int descriptor = GetParam()(directory_.file(directory), name, O_RDONLY);
    if (descriptor < 0) return -descriptor;
    EXPECT_NE(::fcntl(descriptor, F_GETFD) & FD_CLOEXEC, 0);
    ::close(descriptor);
    return 0;
  }
  TempDirectory directory_;
};

TEST_P(OpenBeneath, OpensFilesOfADirectoryThatMayBeALink) {
  EXPECT_EQ(status("inside", "data"), 0);
  EXPECT_EQ(status("link_to_inside", "data"), 0);
  EXPECT_EQ(status("inside", "absent"), ENOENT);
  EXPECT_EQ(status("nowhere", "data"), ENOENT);
}

TEST_P(OpenBeneath, NoNameLeadsOut) {
  EXPECT_EQ(status("inside", "../outside"), EXDEV);
  EXPECT_EQ(status("inside", directory_.file("outside")), EXDEV);
  EXPECT_NE(status("inside", "below/../../outside"), 0);
  EXPECT_NE(status("inside", ".."), 0);
  EXPECT_NE(status("inside", ""), 0);
}

TEST_P(OpenBeneath, NoSymbolicLinkIsFollowed) {
  EXPECT_EQ(status("inside", "link_out"), ELOOP);
  EXPECT_EQ(status("inside", "link_in"), ELOOP);
}

INSTANTIATE_TEST_SUITE_P(Ways, OpenBeneath,
                         ::testing::Values(&open_beneath, &open_beneath_without_openat2));

TEST(PathParts, AreADirectoryAndAName) {
  EXPECT_EQ(directory_of("a/b/c"), "a/b");
  EXPECT_EQ(name_of("a/b/c"), "c");
  EXPECT_EQ(directory_of("c"), ".");
  EXPECT_EQ(name_of("c"), "c");
  EXPECT_EQ(directory_of("/c"), "/");
}

}  // namespace
}  // namespace sluice::testing
