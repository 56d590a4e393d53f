// Dividing this machine's cores among processes that run side by side.
#pragma once

#include <sched.h>

#include <string>
#include <vector>

namespace sluice {

// A set of processors for each of `shares` processes: whole cores that this process may use, no
// core twice, neighbours together. Empty if there are fewer cores than shares, or more processors
// than a cpu_set_t has bits: then nothing should be bound. synthetic: as load_topology() takes it.
std::vector<cpu_set_t> share_cores(int shares, const std::string& synthetic = {});

// "0-3,8": the processors of a set.
std::string describe_cpus(const cpu_set_t& cpus);

}  // namespace sluice
