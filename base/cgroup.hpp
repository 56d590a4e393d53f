// The memory limit that control groups put on this process, versions 1 and 2.
//
// Source: Linux Documentation/admin-guide/cgroup-v2.rst ("memory.max", "memory.current") and
// cgroup-v1/memory.rst ("memory.limit_in_bytes"). The limits of all ancestors apply; all are read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>

namespace sluice {

struct CgroupMemory {
  std::uint64_t limit_bytes = 0;  // the least limit of the group and its ancestors; 0: no limit
  // The least of limit - usage over the group and its ancestors. The usage excludes the file cache,
  // because the kernel reclaims it before it denies memory.
  std::uint64_t left_bytes = std::numeric_limits<std::uint64_t>::max();
};

// root: the directory in which proc/self/{cgroup,mountinfo} and the mount points are looked up;
// tests pass one other than "/". Missing or malformed files mean no limit; it does not throw.
CgroupMemory read_cgroup_memory(const std::filesystem::path& root = "/");

}  // namespace sluice
