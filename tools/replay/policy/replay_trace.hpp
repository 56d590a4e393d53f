// Runs a recorded or generated trace through an allocation policy.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tools/replay/policy/replay_policy.hpp"

namespace sluice::replay {

// One allocation as a policy placed it. Times are indices of operations.
struct PlacedAllocation {
  std::uint32_t allocation = 0;
  std::uint64_t address = 0;
  std::size_t begin = 0;
  std::size_t end = 0;  // exclusive
};

struct ReservedSample {
  std::size_t operation = 0;
  std::uint64_t reserved_bytes = 0;
};

// The record of a replay, for a plot. Placements are checked: InternalError if two held allocations
// share a byte.
struct ReplayRecord {
  std::vector<PlacedAllocation> placed;
  std::vector<ReservedSample> samples;  // after each allocation
};

struct ReplayOutcome {
  bool completed = false;
  // The operation that failed, and the live bytes then. No operation if the trace completed, or if
  // the memory that it begins with did not fit.
  std::optional<std::size_t> failed_operation;
  std::uint64_t failed_live_bytes = 0;
  std::uint64_t peak_live_bytes = 0;  // requested bytes, counted until the caller frees them
  std::uint64_t peak_reserved_bytes = 0;
  PolicyCounters counters;
  // The figures since the policy became steady; zero if it never did.
  bool was_steady = false;
  std::size_t steady_from = 0;
  std::uint64_t steady_peak_live_bytes = 0;
  std::uint64_t steady_peak_reserved_bytes = 0;
  PolicyCounters steady_counters;  // all but the reserved bytes count since then

  // 1 - peak live / peak reserved, since the policy became steady.
  double fragmentation() const;
};

// Runs the trace through a fresh policy, to its end or to the first request that fails. A refused
// request of the record is a request like others; the policy frees it at once.
ReplayOutcome replay_trace(const record::MemoryTrace& trace, const NamedPolicy& policy,
                           std::uint64_t capacity_bytes = UINT64_MAX,
                           ReplayRecord* record = nullptr);

// The seconds that the calls of the policy and the loop around them take: the least of `rounds`
// runs. An allocation that fails is not freed.
double replay_seconds(const record::MemoryTrace& trace, const NamedPolicy& policy, int rounds);

// The least capacity, in steps of 2 MiB, at which the trace completes, refused requests included.
// Precondition: it completes at `enough_bytes`.
std::uint64_t least_capacity_bytes(const record::MemoryTrace& trace, const NamedPolicy& policy,
                                   std::uint64_t enough_bytes);

}  // namespace sluice::replay
