// Our allocators, themselves, as replay policies: over a device that only counts.
#pragma once

#include "allocator/planning_allocator.hpp"
#include "tools/replay/replay_policy.hpp"

namespace sluice {

// "dynamic": CachingAllocator, which knows no future.
NamedPolicy dynamic_policy(const CachingAllocatorOptions& options = {});
// "planned": PlanningAllocator, which plans a step once two in a row are alike. The trace needs
// steps.
NamedPolicy planned_policy(PackingEffort effort = PackingEffort::kQuick);

}  // namespace sluice
