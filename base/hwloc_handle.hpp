// Owning handles of hwloc's objects, for the sources that call hwloc.
#pragma once

#include <hwloc.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "base/error.hpp"

namespace sluice {

struct DestroyTopology {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using TopologyHandle = std::unique_ptr<hwloc_topology, DestroyTopology>;

struct FreeBitmap {
  void operator()(hwloc_bitmap_t bitmap) const { hwloc_bitmap_free(bitmap); }
};
using BitmapHandle = std::unique_ptr<hwloc_bitmap_s, FreeBitmap>;

// Loads the topology of this machine as the process may use it. If `synthetic` is not empty, loads
// the machine that it describes instead (hwloc manual, "Synthetic topologies"); binding there
// succeeds and does nothing.
inline TopologyHandle load_topology(const std::string& synthetic = {}) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) throw Error("hwloc could not create a topology");
  TopologyHandle topology(raw);
  if (!synthetic.empty() && hwloc_topology_set_synthetic(raw, synthetic.c_str()) != 0) {
    throw InputError("hwloc does not understand the synthetic topology '" + synthetic + "'");
  }
  // Without /sys, as in some sandboxes, hwloc's Linux part prints an error and gives up. Its x86
  // part then finds the processors alone, so the former is not tried.
  const bool no_sysfs = synthetic.empty() && access("/sys/devices/system/cpu", R_OK) != 0;
  const unsigned long flag = HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST;
  if (no_sysfs && hwloc_topology_set_components(raw, flag, "linux") != 0) {
    throw Error("hwloc could not leave out its Linux part");
  }
  if (hwloc_topology_load(raw) != 0) throw Error("hwloc could not read this machine's topology");
  return topology;
}

inline BitmapHandle make_bitmap() {
  BitmapHandle bitmap(hwloc_bitmap_alloc());
  if (!bitmap) throw Error("hwloc had no memory for a bitmap");
  return bitmap;
}

// The processing units of this process's affinity mask.
inline BitmapHandle read_usable_cpus(hwloc_topology_t topology) {
  BitmapHandle usable = make_bitmap();
  if (hwloc_get_cpubind(topology, usable.get(), HWLOC_CPUBIND_PROCESS) != 0) {
    hwloc_bitmap_copy(usable.get(), hwloc_topology_get_allowed_cpuset(topology));
  }
  return usable;
}

}  // namespace sluice
