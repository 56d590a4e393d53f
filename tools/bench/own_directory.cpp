#include "tools/bench/own_directory.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/directory.hpp"
#include "base/error.hpp"

namespace sluice::bench {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "sluice_bench_";

// Tells a directory of ours from whatever else is called so.
constexpr const char* kMarker = ".sluice_bench";
constexpr std::string_view kMarkerText = "Made by `sluice bench`, which removes it.\n";

int open_marker(const fs::path& directory, int flags) {
  const fs::path path = directory / kMarker;
  return ::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | flags,
                S_IRUSR | S_IWUSR);
}
bool lock(const FileDescriptor& marker) {
  return ::flock(marker.get(), LOCK_EX | LOCK_NB) == 0;
}
bool is_ours(const FileDescriptor& marker) {
  std::array<char, kMarkerText.size() + 1> text{};
  const ssize_t count = ::pread(marker.get(), text.data(), text.size(), 0);
  return count >= 0 &&
         std::string_view(text.data(), static_cast<std::size_t>(count)) == kMarkerText;
}

// Removes the directories of benches that have ended. A running bench holds the lock of its marker,
// and took it before it wrote the marker's text.
void remove_abandoned(const std::string& parent) {
  for (const fs::path& path : list_directory(parent)) {
    if (!path.filename().string().starts_with(kPrefix)) continue;
    std::error_code ignored;  // a directory that cannot be removed costs only room
    const FileDescriptor marker(open_marker(path, 0));
    if (marker.get() >= 0 && is_ours(marker) && lock(marker)) fs::remove_all(path, ignored);
  }
}

// One just made. False: errno says why.
bool mark(const FileDescriptor& marker) {
  if (marker.get() < 0 || !lock(marker)) return false;
  const ssize_t count = ::pwrite(marker.get(), kMarkerText.data(), kMarkerText.size(), 0);
  return count == static_cast<ssize_t>(kMarkerText.size());
}

}  // namespace

OwnDirectory::OwnDirectory(const std::string& parent) {
  remove_abandoned(parent);
  std::string pattern = parent + "/" + kPrefix + "XXXXXX";
  const bool made = ::mkdtemp(pattern.data()) != nullptr;
  if (made) {
    path_ = pattern;
    lock_.emplace(open_marker(path_, O_CREAT | O_EXCL));
    if (mark(*lock_)) return;
  }
  const int error = errno;
  std::error_code ignored;
  if (made) fs::remove_all(path_, ignored);
  throw InputError("directory '" + parent +
                   "' cannot hold the benchmark's files: " + std::strerror(error));
}

OwnDirectory::~OwnDirectory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace sluice::bench
