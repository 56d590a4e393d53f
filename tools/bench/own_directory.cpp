#include "tools/bench/own_directory.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/error.hpp"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "sluice_bench_";

int open_directory(const fs::path& path) {
  return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}
bool lock(const FileDescriptor& directory) {
  return directory.get() >= 0 && ::flock(directory.get(), LOCK_EX | LOCK_NB) == 0;
}

// Whoever still has its own holds its lock. One that was made this very moment may go, too: its
// maker makes another.
void remove_abandoned(const std::string& parent) {
  std::vector<fs::path> found;
  std::error_code ignored;  // what cannot be removed is only room
  for (const fs::directory_entry& entry : fs::directory_iterator(parent, ignored)) {
    if (entry.path().filename().string().starts_with(kPrefix)) found.push_back(entry.path());
  }
  for (const fs::path& path : found) {
    const FileDescriptor directory(open_directory(path));
    if (lock(directory)) fs::remove_all(path, ignored);
  }
}

}  // namespace

OwnDirectory::OwnDirectory(const std::string& parent) {
  constexpr int kMostAttempts = 16;
  remove_abandoned(parent);
  int error = 0;
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    std::string pattern = parent + "/" + kPrefix + "XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) {
      error = errno;
      break;
    }
    path_ = pattern;
    lock_.emplace(open_directory(path_));
    const bool held = lock(*lock_);
    error = errno;
    std::error_code ignored;  // somebody has removed it
    if (held && fs::exists(path_, ignored)) return;
    fs::remove_all(path_, ignored);
  }
  throw InputError("directory '" + parent +
                   "' cannot hold the benchmark's files: " + std::strerror(error));
}

OwnDirectory::~OwnDirectory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace sluice
