// A directory of its own for a bench's files, so that nothing of the user's can be in the way;
// removed with them.
#pragma once

#include <optional>
#include <string>

#include "base/file_descriptor.hpp"

namespace sluice {

class OwnDirectory {
 public:
  // Inside `parent`, where what benches that were killed have left is removed first. InputError
  // where it cannot be made.
  explicit OwnDirectory(const std::string& parent);
  ~OwnDirectory();
  OwnDirectory(const OwnDirectory&) = delete;
  OwnDirectory& operator=(const OwnDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string file(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_;
  std::optional<FileDescriptor> lock_;  // held while the bench lives
};

}  // namespace sluice
