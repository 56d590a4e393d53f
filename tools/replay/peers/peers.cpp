#include "tools/replay/peers/peers.hpp"

#include <memory>

#include "tools/replay/peers/torch_allocator.hpp"

namespace sluice::replay {
namespace {

NamedPolicy torch_policy(const char* name, TorchSegments segments) {
  return {name, [segments](const record::MemoryTrace& trace, std::uint64_t capacity_bytes) {
            return std::make_unique<TorchAllocator>(trace, capacity_bytes, segments);
          }};
}

}  // namespace

NamedPolicy native_policy() {
  return torch_policy("native", TorchSegments::kFixed);
}

NamedPolicy expandable_policy() {
  return torch_policy("expandable", TorchSegments::kExpandable);
}

std::vector<NamedPolicy> peer_policies() {
  return {native_policy(), expandable_policy()};
}

}  // namespace sluice::replay
