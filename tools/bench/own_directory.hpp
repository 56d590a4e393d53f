// A directory of its own for a bench's files, so that nothing of the user's can be in the way;
// removed with them.
#pragma once

#include <optional>
#include <string>

#include "base/file_descriptor.hpp"

namespace sluice::bench {

class OwnDirectory {
 public:
  // Inside `parent`, where directories of this kind that nobody holds any more are removed first: a
  // file in them says that they are of this kind. InputError where it cannot be made.
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
