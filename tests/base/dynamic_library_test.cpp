#include "base/dynamic_library.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/temp_directory.hpp"

namespace sluice {
namespace {

TEST(DynamicLibrary, FindsTheFunctionsOfTheFirstNameThatExists) {
  DynamicLibrary library = DynamicLibrary::open({"libsluice_absent.so.9", "libm.so.6"});
  ASSERT_TRUE(library.is_open()) << library.error();
  EXPECT_EQ(library.name(), "libm.so.6");
  EXPECT_EQ(library.error(), "");
  double (*square_root)(double) = nullptr;
  library.find("sqrt", square_root);
  ASSERT_NE(square_root, nullptr);
  EXPECT_EQ(square_root(9.0), 3.0);
  EXPECT_EQ(library.missing(), "");
}

TEST(DynamicLibrary, NamesTheFirstFunctionThatIsMissing) {
  DynamicLibrary library = DynamicLibrary::open({"libm.so.6"});
  void (*function)() = [] {};
  library.find("no_such_function", function);
  EXPECT_EQ(function, nullptr);
  library.find("nor_this_one", function);
  EXPECT_EQ(library.missing(), "no_such_function");
}

TEST(DynamicLibrary, AnAbsentLibraryLeavesTheLinkersWords) {
  DynamicLibrary library = DynamicLibrary::open({"libsluice_absent.so.9"});
  EXPECT_FALSE(library.is_open());
  EXPECT_NE(library.error().find("libsluice_absent.so.9"), std::string::npos) << library.error();
  void (*function)() = [] {};
  library.find("anything", function);
  EXPECT_EQ(function, nullptr);
  EXPECT_EQ(library.missing(), "anything");
}

// As CUDA 13's packages install them, and as those for CUDA 12 did.
TEST(DynamicLibrary, AWheelFindsTheLibrariesOfNvidiasPackages) {
  namespace fs = std::filesystem;
  const testing::TempDirectory folder;
  const fs::path site = fs::path(folder.path()) / "site-packages";
  for (const char* package : {"cudnn", "cu13", "cublas"}) {
    fs::create_directories(site / "nvidia" / package / "lib");
  }
  fs::create_directories(site / "nvidia" / "include");
  const auto directory = [&](const char* package) {
    return (site / "nvidia" / package / "lib").string();
  };
  const std::vector<std::string> all = {directory("cu13"), directory("cublas"), directory("cudnn")};
  EXPECT_EQ(nvidia_package_directories((site / "sluice/bin/sluice").string()), all);
  EXPECT_EQ(nvidia_package_directories((site / "sluice/lib/libsluice.so.1").string()), all);
  EXPECT_TRUE(nvidia_package_directories((site / "other/lib/libsluice.so.1").string()).empty());
  EXPECT_TRUE(nvidia_package_directories("/usr/bin/sluice").empty());
  EXPECT_TRUE(nvidia_package_directories("").empty());
}

}  // namespace
}  // namespace sluice
