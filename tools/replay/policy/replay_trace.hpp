// A recorded or generated trace through allocation policies.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/replay/policy/replay_policy.hpp"

namespace sluice::replay {

// One allocation as a policy placed it, in positions of the trace.
struct PlacedAllocation {
  std::uint32_t allocation = 0;
  std::uint64_t address = 0;
  std::size_t begin = 0;
  std::size_t end = 0;  // exclusive
};

struct ReservedSample {
  std::size_t operation = 0;
  std::uint64_t live_bytes = 0;
  std::uint64_t reserved_bytes = 0;
};

// Where a replay writes down what it did, for a plot. Placements are checked: two held ones that
// share a byte are an InternalError.
struct ReplayRecord {
  std::vector<PlacedAllocation> placed;
  std::vector<ReservedSample> samples;  // after each allocation
};

struct ReplayOutcome {
  bool completed = false;
  std::size_t failed_operation = 0;   // where not completed
  std::uint64_t peak_live_bytes = 0;  // requested bytes, until the caller frees them
  std::uint64_t peak_reserved_bytes = 0;
  PolicyCounters counters;
  // The same from where the policy is steady on; before it, and where it never is, zero.
  bool was_steady = false;
  std::size_t steady_from = 0;
  std::uint64_t steady_peak_live_bytes = 0;
  std::uint64_t steady_peak_reserved_bytes = 0;
  PolicyCounters steady_counters;  // flushes to fallback_count: since then

  // 1 - peak live / peak reserved, while steady.
  double fragmentation() const;
};

// Runs the trace through a fresh policy, up to its end or an allocation that fails.
ReplayOutcome replay_trace(const record::MemoryTrace& trace, const NamedPolicy& policy,
                           std::uint64_t capacity_bytes = UINT64_MAX,
                           ReplayRecord* record = nullptr);

// Seconds of the policy's calls, and of the loop around them: the least of `rounds` runs.
double replay_seconds(const record::MemoryTrace& trace, const NamedPolicy& policy, int rounds);

// The least capacity, in steps of 2 MiB, at which the trace completes; `enough_bytes`: one at which
// it does.
std::uint64_t least_capacity_bytes(const record::MemoryTrace& trace, const NamedPolicy& policy,
                                   std::uint64_t enough_bytes);

}  // namespace sluice::replay
