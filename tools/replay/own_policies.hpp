// Our allocators, themselves, as replay policies: over a device that only counts.
#pragma once

#include "allocator/caching/planning_allocator.hpp"
#include "tools/replay/policy/replay_policy.hpp"

namespace sluice::replay {

// "dynamic": CachingAllocator, which knows no future.
NamedPolicy dynamic_policy(const allocator::CachingAllocatorOptions& options = {});
// "planned": PlanningAllocator, which plans a step once two in a row are alike. The trace needs
// steps. Plans are kept by the policy: the next replay of the same steps makes none.
NamedPolicy planned_policy(packing::PackingEffort effort = packing::PackingEffort::kThorough);

// What a CachingAllocator with a recorder attached has seen and holds after the whole trace;
// planned: with a PlanningAllocator in front of it.
record::MemorySnapshot snapshot_after(const record::MemoryTrace& trace, bool planned = false);

}  // namespace sluice::replay
