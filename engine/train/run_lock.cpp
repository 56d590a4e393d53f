#include "engine/train/run_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/error.hpp"

namespace sluice {

RunLock::RunLock(const std::string& key, const std::string& directory) {
  const std::string path = directory + "/lock";
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (descriptor_ < 0) throw IoError("open", path, 0, 0, errno);
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    std::array<char, 32> holder{};
    const ssize_t bytes = ::pread(descriptor_, holder.data(), holder.size() - 1, 0);
    ::close(descriptor_);
    if (error != EWOULDBLOCK) throw IoError("flock", path, 0, 0, error);
    throw InputError(key + ": '" + directory + "' is in use by another run" +
                     (bytes > 0 ? " (process " + std::string(holder.data()) + ")" : std::string()) +
                     "; name another " + key + " or wait for it");
  }
  // For the message above; a run that cannot write it still holds the lock.
  const std::string self = std::to_string(::getpid());
  if (::ftruncate(descriptor_, 0) == 0) {
    static_cast<void>(::pwrite(descriptor_, self.data(), self.size(), 0));
  }
}

RunLock::~RunLock() {
  ::close(descriptor_);
}

}  // namespace sluice
