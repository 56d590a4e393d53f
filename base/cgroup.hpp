// The memory limit that control groups put on this process, versions 1 and 2.
//
// Source: Linux Documentation/admin-guide/cgroup-v2.rst ("memory.max", "memory.current") and
// cgroup-v1/memory.rst ("memory.limit_in_bytes"). A limit of any ancestor binds, so all are read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>

namespace sluice {

struct CgroupMemory {
  std::uint64_t limit_bytes = 0;  // the least limit of the group and its ancestors; 0: no limit
  // The least of limit - usage over the group and its ancestors, where usage leaves out the file
  // cache that the kernel reclaims before it denies memory.
  std::uint64_t left_bytes = std::numeric_limits<std::uint64_t>::max();
};

// root: where proc/self/{cgroup,mountinfo} and the mount points are looked up; other than "/" in
// tests. Missing or malformed files mean no limit: nothing is thrown.
CgroupMemory read_cgroup_memory(const std::filesystem::path& root = "/");

}  // namespace sluice
