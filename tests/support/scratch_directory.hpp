// A directory of one test, removed with it.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "tests/support/temp_directory.hpp"
#include "tests/support/thrown.hpp"

namespace sluice::testing {

class ScratchDirectory : private TempDirectory {
 public:
  ScratchDirectory() : TempDirectory(::testing::TempDir()) {}

  std::string operator/(std::string_view name) const { return file(std::string(name)); }
  std::string path() const { return TempDirectory::path().native(); }
  // Writes a file, making the directories on the way; returns its path.
  std::string write(std::string_view name, std::string_view content) const {
    const std::filesystem::path file = TempDirectory::path() / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << content;
    return file.native();
  }
};

}  // namespace sluice::testing
