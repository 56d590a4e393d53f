// Opening a file whose name somebody else chose (a manifest, a record), so that it cannot lead
// away.
#pragma once

#include <string>

namespace sluice {

// Opens `name`, one component or several, beneath `directory`, which may itself be reached by
// symbolic links: openat2 with RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS (man 2
// openat2, Linux 5.6). Where the kernel or a container's profile has no openat2, `name` must be one
// component, and O_NOFOLLOW refuses a link there. flags: as open(2), nothing created; O_CLOEXEC is
// added. A descriptor, or -errno: ELOOP for a symbolic link, EXDEV for a name that leads out.
int open_beneath(const std::string& directory, const std::string& name, int flags);
// Its way without openat2, for tests on kernels that have it.
int open_beneath_without_openat2(const std::string& directory, const std::string& name, int flags);

// path's directory ("." where it names none) and last component, for open_beneath.
std::string directory_of(const std::string& path);
std::string name_of(const std::string& path);

}  // namespace sluice
