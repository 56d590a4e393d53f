#include "base/dynamic_library.hpp"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace sluice
