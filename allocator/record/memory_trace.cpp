#include "allocator/record/memory_trace.hpp"

#include <algorithm>

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

}  // namespace sluice::record
