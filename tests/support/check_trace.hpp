// Checks that a trace is sound: an oracle for readers, generators and rollback.
#pragma once

#include <cstdint>
#include <vector>

#include "allocator/record/memory_trace.hpp"
#include "base/error.hpp"

namespace sluice::testing {

// Throws InternalError if an operation names no allocation, frees twice, or allocates twice.
inline void check_trace(const record::MemoryTrace& trace) {
  enum class Life : std::uint8_t { kUnborn, kLive, kPending, kDead };
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
    if (operation.action == record::TraceAction::kStep ||
        operation.action == record::TraceAction::kFlush)
      continue;
    SLUICE_CHECK(operation.allocation < lives.size());
    Life& life = lives[operation.allocation];
    const auto advance = [&life](Life from, Life to) {
      SLUICE_CHECK(life == from);
      life = to;
    };
    switch (operation.action) {
      case record::TraceAction::kAlloc:
        advance(Life::kUnborn, Life::kLive);
        break;
      case record::TraceAction::kFree:
        advance(Life::kLive, Life::kDead);
        break;
      case record::TraceAction::kFreePending:
        advance(Life::kLive, Life::kPending);
        break;
      case record::TraceAction::kFreeCompleted:
        advance(Life::kPending, Life::kDead);
        break;
      case record::TraceAction::kStep:
      case record::TraceAction::kFlush:
        break;
    }
  }
}

}  // namespace sluice::testing
