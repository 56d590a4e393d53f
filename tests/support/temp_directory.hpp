// A fresh directory under the current one (a real disk where the build folder is on one), removed
// with all it holds when it goes out of scope.
#pragma once

#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

namespace sluice::testing {

class TempDirectory {
 public:
  explicit TempDirectory(const std::filesystem::path& parent = std::filesystem::current_path()) {
    std::string pattern = (parent / "sluice_test_XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) {
      throw std::system_error(errno, std::generic_category(), "mkdtemp " + pattern);
    }
    path_ = pattern;
  }
  ~TempDirectory() {
    std::error_code ignored;  // a test's own failure matters more than a file left behind
    std::filesystem::remove_all(path_, ignored);
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace sluice::testing
