// Whether this machine has what a plan takes: refused before anything is touched.
#pragma once

#include "engine/planner/plan.hpp"
#include "engine/train/config.hpp"

namespace sluice {

// Budgets of memory against what is available (the cgroup's limit included). Throws InputError
// naming the keys, the bytes asked for and the bytes there.
void check_memory_budgets(const Config& config);
// Storage paths: directories that can be written (or made), with room for the plan's share. Throws
// InputError naming the path, the needed and the available bytes.
void check_storage_paths(const Config& config, std::uint64_t needed_bytes);

}  // namespace sluice
