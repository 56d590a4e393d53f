// Replicas of the rules of PyTorch's caching allocator, as policies that a trace is replayed
// through. They are the yardsticks that our own allocators are compared with. torch_allocator.hpp
// names the source and every known difference from it.
#pragma once

#include <vector>

#include "tools/replay/policy/replay_policy.hpp"

namespace sluice::replay {

NamedPolicy native_policy();      // the default: segments of a fixed size
NamedPolicy expandable_policy();  // expandable_segments:True

// Both, in this order.
std::vector<NamedPolicy> peer_policies();

}  // namespace sluice::replay
