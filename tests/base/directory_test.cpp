#include "base/directory.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.hpp"
#include "tests/support/temp_directory.hpp"

namespace sluice {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> names(const std::vector<fs::path>& paths, const fs::path& directory) {
  std::vector<std::string> names;
  for (const fs::path& path : paths) names.push_back(path.lexically_relative(directory));
  return names;
}

TEST(Directory, EntriesAndFilesBelowAreSortedByTheirBytes) {
  const testing::TempDirectory directory;
  const fs::path& root = directory.path();
  for (const char* name : {"a", "a/b", ".hidden", "z"}) fs::create_directory(root / name);
  for (const char* name : {"a/x", "a/b/y", "a.c", "B", ".dot", ".hidden/n"}) {
    std::ofstream(root / name) << name;
  }
  fs::create_symlink("a.c", root / "link");
  fs::create_directory_symlink("a", root / "loop");
  EXPECT_EQ(names(list_directory(root), root),
            (std::vector<std::string>{".dot", ".hidden", "B", "a", "a.c", "link", "loop", "z"}));
  // "a.c" comes before "a/x": '.' is less than '/'.
  EXPECT_EQ(names(list_files_below(root), root),
            (std::vector<std::string>{"B", "a.c", "a/b/y", "a/x"}));
}

TEST(Directory, WithoutOneTheListIsEmpty) {
  const testing::TempDirectory directory;
  std::ofstream(directory.file("file")) << "x";
  EXPECT_TRUE(list_directory(directory.file("none")).empty());
  EXPECT_TRUE(list_directory(directory.file("file")).empty());
  EXPECT_TRUE(list_files_below(directory.file("none")).empty());
}

TEST(Directory, OneThatCannotBeReadIsAnError) {
  const testing::TempDirectory directory;
  fs::create_directory_symlink("turn", directory.path() / "turn");  // a loop
  EXPECT_THROW(list_directory(directory.file("turn")), IoError);
}

}  // namespace
}  // namespace sluice
