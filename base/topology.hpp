// Facts about this host: cores, memory, cgroup limit, CPU name (from hwloc, /proc and /sys).
#pragma once

#include <cstdint>
#include <string>

namespace sluice {

struct HostTopology {
  int cores = 1;  // physical cores this process may use
  int numa_nodes = 1;
  std::uint64_t memory_bytes = 0;         // of the machine
  std::uint64_t available_bytes = 0;      // MemAvailable now, at most the cgroup's rest
  std::uint64_t cgroup_limit_bytes = 0;   // 0: no limit
  std::uint64_t memlock_limit_bytes = 0;  // RLIMIT_MEMLOCK; UINT64_MAX: unlimited
  std::string cpu_name;
};

HostTopology read_host_topology();

}  // namespace sluice
