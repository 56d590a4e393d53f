// A new directory for a bench's files, so that it cannot touch files of the user. It is removed
// with its files.
#pragma once

#include <optional>
#include <string>

#include "base/file_descriptor.hpp"

namespace sluice::bench {

class OwnDirectory {
 public:
  // Makes a directory inside `parent`. Directories of ended benches there are removed first; a
  // marker file in each shows that a bench made it. Throws InputError if it cannot be made.
  explicit OwnDirectory(const std::string& parent);
  ~OwnDirectory();
  OwnDirectory(const OwnDirectory&) = delete;
  OwnDirectory& operator=(const OwnDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string file(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_;
  std::optional<FileDescriptor> lock_;  // on that file, held while the bench lives
};

}  // namespace sluice::bench
