// Drives a policy by hand. A test names allocations by their index in a list.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/units.hpp"
#include "tools/replay/policy/replay_policy.hpp"

namespace sluice::replay {

inline std::vector<record::TraceAllocation> mebibytes(std::initializer_list<std::uint64_t> sizes) {
  std::vector<record::TraceAllocation> result;
  for (const std::uint64_t size : sizes) result.push_back({.bytes = size * kMiB});
  return result;
}

// A trace that begins with a segment of 20 MiB at 1 GiB: 4 MiB are live (id 0), 6 MiB are free and
// 10 MiB are pending (id 1).
inline record::MemoryTrace trace_with_a_past(bool is_expandable) {
  record::MemoryTrace trace;
  trace.initial_segments.push_back(
      {.address = kGiB,
       .bytes = 20 * kMiB,
       .is_expandable = is_expandable,
       .blocks = {{kGiB, 4 * kMiB, 4 * kMiB, record::BlockState::kAllocated},
                  {kGiB + 4 * kMiB, 6 * kMiB, 0, record::BlockState::kFree},
                  {kGiB + 10 * kMiB, 10 * kMiB, 10 * kMiB, record::BlockState::kPendingFree}}});
  trace.initial_ids = {{0, UINT32_MAX, 1}};
  return trace;
}

class PeerScript {
 public:
  // settings: everything of a trace except its allocations.
  PeerScript(const NamedPolicy& policy, std::vector<record::TraceAllocation> allocations,
             std::uint64_t capacity_bytes = UINT64_MAX, record::MemoryTrace settings = {})
      : trace_(std::make_unique<record::MemoryTrace>(std::move(settings))) {
    trace_->allocations = std::move(allocations);
    policy_ = policy.make(*trace_, capacity_bytes);
  }

  std::optional<std::uint64_t> try_allocate(std::uint32_t id) { return policy_->allocate(id); }
  std::uint64_t allocate(std::uint32_t id) {
    const std::optional<std::uint64_t> address = try_allocate(id);
    EXPECT_TRUE(address) << "allocation " << id;
    return address.value_or(0);
  }
  void free(std::uint32_t id, bool pending = false) { policy_->free(id, pending); }
  void complete(std::uint32_t id) { policy_->complete(id); }
  ReplayPolicy& policy() { return *policy_; }
  PolicyCounters counters() const { return policy_->counters(); }
  std::uint64_t reserved() const { return counters().reserved_bytes; }

 private:
  std::unique_ptr<record::MemoryTrace> trace_;
  std::unique_ptr<ReplayPolicy> policy_;
};

}  // namespace sluice::replay
