#include "base/posix_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "base/error.hpp"
#include "tests/support/temp_directory.hpp"

namespace sluice {
namespace {

// A file that is renamed over a device node destroys it: root could lose /dev/null so.
TEST(RenameDurably, NeverReplacesWhatIsNoFile) {
  const testing::TempDirectory directory;
  const std::string fifo = directory.path() / "fifo";
  const std::string fresh = directory.path() / "fresh";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  std::ofstream(fresh) << "new";
  EXPECT_THROW(rename_durably(fresh, fifo), InputError);
  EXPECT_TRUE(std::filesystem::is_fifo(fifo));
  EXPECT_TRUE(std::filesystem::exists(fresh));
  EXPECT_THROW(check_replaceable("/dev/null"), InputError);
}

TEST(RenameDurably, ReplacesFilesAndLinks) {
  const testing::TempDirectory directory;
  for (const char* name : {"file", "link", "absent"}) {
    const std::string target = directory.path() / name;
    if (name == std::string("file")) std::ofstream(target) << "old";
    if (name == std::string("link")) std::filesystem::create_symlink("elsewhere", target);
    const std::string fresh = target + ".tmp";
    std::ofstream(fresh) << "new";
    rename_durably(fresh, target);
    EXPECT_TRUE(std::filesystem::is_regular_file(target)) << name;
    EXPECT_EQ(std::filesystem::file_size(target), 3U);
  }
}

}  // namespace
}  // namespace sluice
