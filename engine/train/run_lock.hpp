// One run per directory: an advisory lock that ends with the process, however it ends.
#pragma once

#include <string>

namespace sluice {

class RunLock {
 public:
  // Locks DIRECTORY/lock (mode 0600); key: what names the directory, "log.dir". Throws InputError
  // where another run holds it, naming its process; IoError where the file cannot be made.
  RunLock(const std::string& key, const std::string& directory);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace sluice
