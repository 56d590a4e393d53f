#include "allocator/record/memory_trace.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace sluice::record {

std::uint64_t initial_live_bytes(const MemoryTrace& trace) {
  std::uint64_t live_bytes = 0;
  for (std::size_t s = 0; s < trace.initial_segments.size(); ++s) {
    const std::vector<SnapshotBlock>& blocks = trace.initial_segments[s].blocks;
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      if (blocks[b].state == BlockState::kAllocated) {
        live_bytes += trace.allocations[trace.initial_ids[s][b]].bytes;
      }
    }
  }
  return live_bytes;
}

std::uint64_t peak_live_bytes(const MemoryTrace& trace) {
  std::uint64_t live_bytes = initial_live_bytes(trace);
  std::uint64_t peak_bytes = live_bytes;
  for (const TraceOperation& operation : trace.operations) {
    const std::uint64_t bytes = operation.allocation < trace.allocations.size()
                                    ? trace.allocations[operation.allocation].bytes
                                    : 0;
    if (operation.action == TraceAction::kAlloc) live_bytes += bytes;
    if (operation.action == TraceAction::kFree || operation.action == TraceAction::kFreePending) {
      live_bytes -= bytes;
    }
    peak_bytes = std::max(peak_bytes, live_bytes);
  }
  return peak_bytes;
}

void check_trace(const MemoryTrace& trace) {
  enum class Life : std::uint8_t { kUnborn, kLive, kPending, kDead };
  std::vector<Life> lives(trace.allocations.size(), Life::kUnborn);
  SLUICE_CHECK(trace.initial_ids.size() == trace.initial_segments.size());
  for (std::size_t s = 0; s < trace.initial_segments.size(); ++s) {
    const std::vector<SnapshotBlock>& blocks = trace.initial_segments[s].blocks;
    SLUICE_CHECK(trace.initial_ids[s].size() == blocks.size());
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      if (blocks[b].state == BlockState::kFree) continue;
      const std::uint32_t id = trace.initial_ids[s][b];
      SLUICE_CHECK(id < lives.size() && lives[id] == Life::kUnborn);
      lives[id] = blocks[b].state == BlockState::kAllocated ? Life::kLive : Life::kPending;
    }
  }
  for (const TraceOperation& operation : trace.operations) {
    if (operation.action == TraceAction::kStep || operation.action == TraceAction::kFlush) continue;
    SLUICE_CHECK(operation.allocation < lives.size());
    Life& life = lives[operation.allocation];
    const auto advance = [&life](Life from, Life to) {
      SLUICE_CHECK(life == from);
      life = to;
    };
    switch (operation.action) {
      case TraceAction::kAlloc:
        advance(Life::kUnborn, Life::kLive);
        break;
      case TraceAction::kFree:
        advance(Life::kLive, Life::kDead);
        break;
      case TraceAction::kFreePending:
        advance(Life::kLive, Life::kPending);
        break;
      case TraceAction::kFreeCompleted:
        advance(Life::kPending, Life::kDead);
        break;
      case TraceAction::kStep:
      case TraceAction::kFlush:
        break;
    }
  }
}

}  // namespace sluice::record
