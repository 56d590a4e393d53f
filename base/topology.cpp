#include "base/topology.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>

#include "base/cgroup.hpp"
#include "base/error.hpp"
#include "base/hwloc_handle.hpp"
#include "base/units.hpp"

namespace sluice {

namespace {

// Cores that hold at least one processing unit of this process's affinity mask.
int count_usable_cores(hwloc_topology_t topology) {
  const BitmapHandle usable = read_usable_cpus(topology);
  for (const hwloc_obj_type_t type : {HWLOC_OBJ_CORE, HWLOC_OBJ_PU}) {
    int cores = 0;
    hwloc_obj_t object = nullptr;
    while ((object = hwloc_get_next_obj_by_type(topology, type, object)) != nullptr) {
      if (hwloc_bitmap_intersects(object->cpuset, usable.get()) != 0) ++cores;
    }
    if (cores > 0) return cores;  // some virtual machines show processing units but no cores
  }
  return 1;
}

std::string read_cpu_name(hwloc_topology_t topology) {
  const hwloc_obj_t package = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0);
  for (const hwloc_obj_t object : {package, hwloc_get_root_obj(topology)}) {
    if (object == nullptr) continue;
    const char* name = hwloc_obj_get_info_by_name(object, "CPUModel");
    if (name != nullptr) return name;
  }
  return "unknown";
}

// proc(5), /proc/meminfo: "MemAvailable:   123 kB" (kB means KiB there).
void read_meminfo(HostTopology& host) {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string key;
    std::uint64_t kib = 0;
    if (!(fields >> key >> kib)) continue;
    if (key == "MemTotal:") host.memory_bytes = kib * kKiB;
    if (key == "MemAvailable:") host.available_bytes = kib * kKiB;
  }
  if (host.memory_bytes == 0) throw Error("/proc/meminfo does not state MemTotal");
}

std::uint64_t read_memlock_limit_bytes() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return 0;
  return limit.rlim_cur == RLIM_INFINITY ? std::numeric_limits<std::uint64_t>::max()
                                         : static_cast<std::uint64_t>(limit.rlim_cur);
}

}  // namespace

HostTopology read_host_topology() {
  HostTopology host;
  const TopologyHandle topology = load_topology();
  host.cores = count_usable_cores(topology.get());
  host.numa_nodes = std::max(1, hwloc_get_nbobjs_by_type(topology.get(), HWLOC_OBJ_NUMANODE));
  host.cpu_name = read_cpu_name(topology.get());
  read_meminfo(host);
  const CgroupMemory cgroup = read_cgroup_memory();
  host.cgroup_limit_bytes = cgroup.limit_bytes;
  host.available_bytes = std::min(host.available_bytes, cgroup.left_bytes);
  host.memlock_limit_bytes = read_memlock_limit_bytes();
  return host;
}

}  // namespace sluice
