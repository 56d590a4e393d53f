// A recorded or generated trace through allocation policies.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/replay/replay_policy.hpp"

namespace sluice {

// One allocation as a policy placed it, in positions of the trace.
struct PlacedAllocation {
  std::uint32_t allocation = 0;
  std::uint64_t address = 0;
  std::size_t begin = 0;
  std::size_t end = 0;  // exclusive
};

struct ReplayOutcome {
  bool completed = false;
  std::size_t failed_operation = 0;       // where not completed
  std::uint64_t peak_live_bytes = 0;      // requested bytes
  PolicyCounters counters;                // at the end
  std::uint64_t peak_reserved_bytes = 0;  // over the whole
  double seconds = 0.0;                   // of the policy's calls and the loop around them

  // 1 - peak live / peak reserved.
  double fragmentation() const;
};

// Runs all operations of `trace` through a fresh policy. `placed`, if given, receives every
// allocation; a placement that overlaps a held one is an InternalError then.
ReplayOutcome replay_trace(const MemoryTrace& trace, const NamedPolicy& policy,
                           std::uint64_t capacity_bytes = UINT64_MAX,
                           std::vector<PlacedAllocation>* placed = nullptr);

// The least capacity, in steps of 2 MiB, at which the trace completes. `above`: a capacity at which
// it does.
std::uint64_t least_capacity_bytes(const MemoryTrace& trace, const NamedPolicy& policy,
                                   std::uint64_t above_bytes);

}  // namespace sluice
