// Replicas of the rules of other allocators, to replay a trace through. Each header of this folder
// names its source and where the replica knowingly differs from it.
#pragma once

#include <vector>

#include "tools/replay/replay_policy.hpp"

namespace sluice::replay {

NamedPolicy native_policy();      // PyTorch's caching allocator
NamedPolicy expandable_policy();  // the same with expandable_segments:True
NamedPolicy bfc_policy();         // TensorFlow's
NamedPolicy rmm_pool_policy();    // RAPIDS Memory Manager's pool_memory_resource
NamedPolicy gmlake_policy();      // GMLake

// All of them, in this order.
std::vector<NamedPolicy> peer_policies();

}  // namespace sluice::replay
