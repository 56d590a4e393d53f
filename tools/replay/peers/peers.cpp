#include "tools/replay/peers/peers.hpp"

#include <memory>

#include "tools/replay/peers/bfc_allocator.hpp"
#include "tools/replay/peers/gmlake.hpp"
#include "tools/replay/peers/rmm_pool.hpp"
#include "tools/replay/peers/torch_allocator.hpp"

namespace sluice::replay {
namespace {

template <typename Policy, auto... kArguments>
NamedPolicy named(const char* name) {
  return {name, [](const record::MemoryTrace& trace, std::uint64_t capacity_bytes) {
            return std::make_unique<Policy>(trace, capacity_bytes, kArguments...);
          }};
}

}  // namespace

NamedPolicy native_policy() {
  return named<TorchAllocator, TorchSegments::kFixed>("native");
}

NamedPolicy expandable_policy() {
  return named<TorchAllocator, TorchSegments::kExpandable>("expandable");
}

NamedPolicy bfc_policy() {
  return named<BfcAllocator>("bfc");
}

NamedPolicy rmm_pool_policy() {
  return named<RmmPool>("rmm-pool");
}

NamedPolicy gmlake_policy() {
  return named<GmLake>("gmlake");
}

std::vector<NamedPolicy> peer_policies() {
  return {native_policy(), expandable_policy(), bfc_policy(), rmm_pool_policy(), gmlake_policy()};
}

}  // namespace sluice::replay
