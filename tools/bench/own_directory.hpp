// A directory of its own for a bench's files, so that nothing of the user's can be in the way;
// removed with them.
#pragma once

#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>

#include "base/error.hpp"

namespace sluice {

class OwnDirectory {
 public:
  // Inside `parent`. InputError where it cannot be made.
  explicit OwnDirectory(const std::string& parent) {
    std::string pattern = parent + "/sluice_bench_XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) {
      throw InputError("directory '" + parent +
                       "' cannot hold the benchmark's files: " + std::strerror(errno));
    }
    path_ = pattern;
  }
  ~OwnDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  OwnDirectory(const OwnDirectory&) = delete;
  OwnDirectory& operator=(const OwnDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string file(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace sluice
