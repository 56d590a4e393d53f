#include "base/open_beneath.hpp"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "base/file_descriptor.hpp"

namespace sluice {
namespace {

int open_directory(const std::string& directory) {
  const int descriptor = ::open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  return descriptor < 0 ? -errno : descriptor;
}

int open_one_component(int directory, const std::string& name, int flags) {
  const bool one = !name.empty() && name.find('/') == std::string::npos && name != "..";
  if (!one) return -EXDEV;
  const int descriptor = ::openat(directory, name.c_str(), flags | O_CLOEXEC | O_NOFOLLOW);
  return descriptor < 0 ? -errno : descriptor;
}

}  // namespace

int open_beneath(const std::string& directory, const std::string& name, int flags) {
  const FileDescriptor parent(open_directory(directory));
  if (parent.get() < 0) return parent.get();
  open_how how{};
  how.flags = static_cast<std::uint64_t>(flags | O_CLOEXEC);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  const long descriptor = ::syscall(SYS_openat2, parent.get(), name.c_str(), &how, sizeof how);
  if (descriptor >= 0) return static_cast<int>(descriptor);
  // Seccomp profiles that do not know openat2 refuse it with EPERM. If the file itself caused the
  // EPERM, the call below fails with it again.
  if (errno != ENOSYS && errno != EPERM) return -errno;
  return open_one_component(parent.get(), name, flags);
}

int open_beneath_without_openat2(const std::string& directory, const std::string& name, int flags) {
  const FileDescriptor parent(open_directory(directory));
  if (parent.get() < 0) return parent.get();
  return open_one_component(parent.get(), name, flags);
}

std::string directory_of(const std::string& path) {
  const auto slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string name_of(const std::string& path) {
  return path.substr(path.find_last_of('/') + 1);  // npos + 1 is 0
}

}  // namespace sluice
