// Checks that a trace is sound: an oracle for readers, generators and rollback; counts of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "allocator/record/iterations.hpp"
#include "allocator/record/memory_trace.hpp"
#include "base/error.hpp"

namespace sluice::testing {

// Throws InternalError if an operation names no allocation, frees twice, or allocates twice.
inline void check_trace(const record::MemoryTrace& trace) {
  enum class Life : std::uint8_t { kUnborn, kLive, kPending, kDead };
  // By action: kAlloc, kFree, kFreePending, kFreeCompleted.
  constexpr std::pair<Life, Life> kChanges[] = {{Life::kUnborn, Life::kLive},
                                                {Life::kLive, Life::kDead},
                                                {Life::kLive, Life::kPending},
                                                {Life::kPending, Life::kDead}};
  std::vector<Life> lives(trace.allocations.size(), Life::kUnborn);
  SLUICE_CHECK(trace.initial_ids.size() == trace.initial_segments.size());
  for (std::size_t s = 0; s < trace.initial_segments.size(); ++s) {
    const std::vector<record::SnapshotBlock>& blocks = trace.initial_segments[s].blocks;
    SLUICE_CHECK(trace.initial_ids[s].size() == blocks.size());
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      if (blocks[b].state == record::BlockState::kFree) continue;
      const std::uint32_t id = trace.initial_ids[s][b];
      SLUICE_CHECK(id < lives.size() && lives[id] == Life::kUnborn);
      lives[id] = blocks[b].state == record::BlockState::kAllocated ? Life::kLive : Life::kPending;
    }
  }
  for (const record::TraceOperation& operation : trace.operations) {
    const auto action = static_cast<std::size_t>(operation.action);
    if (operation.action == record::TraceAction::kRefused) {
      SLUICE_CHECK(operation.allocation < lives.size());
      SLUICE_CHECK(lives[operation.allocation] == Life::kUnborn);
      lives[operation.allocation] = Life::kDead;
      continue;
    }
    if (action >= std::size(kChanges)) continue;  // a step, a flush
    SLUICE_CHECK(operation.allocation < lives.size());
    SLUICE_CHECK(lives[operation.allocation] == kChanges[action].first);
    lives[operation.allocation] = kChanges[action].second;
  }
}

inline std::size_t allocation_count(const record::MemoryTrace& trace,
                                    const record::IterationRange& range) {
  return static_cast<std::size_t>(
      std::count_if(trace.operations.begin() + static_cast<std::ptrdiff_t>(range.begin),
                    trace.operations.begin() + static_cast<std::ptrdiff_t>(range.end),
                    [](const auto& one) { return one.action == record::TraceAction::kAlloc; }));
}

}  // namespace sluice::testing
