// Opens a file by an untrusted name (from a manifest or a record), so that the name cannot
// escape its directory.
#pragma once

#include <string>

namespace sluice {

// Opens `name`, one component or several, beneath `directory`. The path to `directory` itself may
// contain symbolic links. Uses openat2 with RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS |
// RESOLVE_NO_MAGICLINKS (man 2 openat2, Linux 5.6). If the kernel or a container's profile has no
// openat2, `name` must be one component, and O_NOFOLLOW refuses a link. flags: as for open(2),
// without O_CREAT; O_CLOEXEC is added. Returns a descriptor, or -errno: ELOOP for a symbolic link,
// EXDEV for a name that leaves the directory.
int open_beneath(const std::string& directory, const std::string& name, int flags);
// The fallback without openat2, for tests on kernels that have it.
int open_beneath_without_openat2(const std::string& directory, const std::string& name, int flags);

// The directory of `path` ("." if it names none) and its last component, for open_beneath.
std::string directory_of(const std::string& path);
std::string name_of(const std::string& path);

}  // namespace sluice
