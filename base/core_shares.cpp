// The ranks of one machine get shares of its cores. hwloc distributes them over the topology, so
// the cores of a share lie close together.
#include "base/core_shares.hpp"

#include <hwloc.h>
#include <hwloc/glibc-sched.h>

#include <climits>
#include <cstddef>

#include "base/hwloc_handle.hpp"

namespace sluice {

std::vector<cpu_set_t> share_cores(int shares, const std::string& synthetic) {
  const TopologyHandle topology = load_topology(synthetic);
  if (synthetic.empty()) {
    const BitmapHandle usable = read_usable_cpus(topology.get());
    if (hwloc_topology_restrict(topology.get(), usable.get(), 0) != 0) return {};
  }
  if (hwloc_get_nbobjs_by_type(topology.get(), HWLOC_OBJ_CORE) < shares) return {};
  hwloc_obj_t root = hwloc_get_root_obj(topology.get());
  std::vector<hwloc_cpuset_t> sets(static_cast<std::size_t>(shares));
  if (hwloc_distrib(topology.get(), &root, 1, sets.data(), static_cast<unsigned>(shares), INT_MAX,
                    0) != 0) {
    return {};
  }
  std::vector<cpu_set_t> result;
  for (const hwloc_cpuset_t set : sets) {
    const BitmapHandle owned(set);
    cpu_set_t cpus;
    if (hwloc_cpuset_to_glibc_sched_affinity(topology.get(), set, &cpus, sizeof cpus) == 0) {
      result.push_back(cpus);
    }
  }
  if (result.size() != sets.size()) result.clear();
  return result;
}

std::string describe_cpus(const cpu_set_t& cpus) {
  std::string text;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &cpus)) continue;
    const int first = cpu;
    while (cpu + 1 < CPU_SETSIZE && CPU_ISSET(cpu + 1, &cpus)) ++cpu;
    text += (text.empty() ? "" : ",") + std::to_string(first);
    if (cpu > first) text += "-" + std::to_string(cpu);
  }
  return text;
}

}  // namespace sluice
