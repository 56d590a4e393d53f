// Our allocators, themselves, as replay policies: over a device that only counts.
#pragma once

#include "allocator/caching_allocator.hpp"
#include "tools/replay/replay_policy.hpp"

namespace sluice {

// CachingAllocator.
std::unique_ptr<ReplayPolicy> make_dynamic_policy(const MemoryTrace& trace,
                                                  std::uint64_t capacity_bytes,
                                                  CachingAllocatorOptions options = {});

}  // namespace sluice
