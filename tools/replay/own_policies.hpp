// Our own allocators as replay policies. They run over a device that only counts.
#pragma once

#include "allocator/caching/planning_allocator.hpp"
#include "tools/replay/policy/replay_policy.hpp"

namespace sluice::replay {

// "dynamic": CachingAllocator, which does not know the future.
NamedPolicy dynamic_policy(const allocator::CachingAllocatorOptions& options = {});
// "planned": PlanningAllocator, which plans a step once two in a row are alike. The trace needs
// steps. The policy keeps its plans, so the next replay of the same steps need not plan again.
NamedPolicy planned_policy(packing::PackingEffort effort = packing::PackingEffort::kThorough);

// Replays the trace through a CachingAllocator with a recorder, and returns the recorded events and
// the final state. planned: a PlanningAllocator stands in front of it. InputError if the trace does
// not fit in the simulated device, the largest of which has 4 TiB.
record::MemorySnapshot snapshot_after(const record::MemoryTrace& trace, bool planned = false);

}  // namespace sluice::replay
