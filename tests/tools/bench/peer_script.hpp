// A policy driven by hand: allocations by their place in a list, sizes in MiB where that is enough.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tools/replay/replay_policy.hpp"

namespace sluice::testing {

inline constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

inline std::vector<record::TraceAllocation> mebibytes(std::initializer_list<std::uint64_t> sizes) {
  std::vector<record::TraceAllocation> result;
  for (const std::uint64_t size : sizes) result.push_back({.bytes = size * kMiB});
  return result;
}

class PeerScript {
 public:
  // `settings`: all of a trace but its allocations.
  PeerScript(const replay::NamedPolicy& policy, std::vector<record::TraceAllocation> allocations,
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
  replay::ReplayPolicy& policy() { return *policy_; }
  replay::PolicyCounters counters() const { return policy_->counters(); }
  std::uint64_t reserved() const { return counters().reserved_bytes; }

 private:
  std::unique_ptr<record::MemoryTrace> trace_;
  std::unique_ptr<replay::ReplayPolicy> policy_;
};

}  // namespace sluice::testing
