#include "allocator/record/memory_trace.hpp"

#include <algorithm>

namespace sluice::record {

namespace {

// The requested bytes of the blocks in this state before the first operation.
std::uint64_t initial_bytes(const MemoryTrace& trace, BlockState state) {
  std::uint64_t bytes = 0;
  for (std::size_t s = 0; s < trace.initial_segments.size(); ++s) {
    const std::vector<SnapshotBlock>& blocks = trace.initial_segments[s].blocks;
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      if (blocks[b].state == state) bytes += trace.allocations[trace.initial_ids[s][b]].bytes;
    }
  }
  return bytes;
}

struct PeakBytes {
  std::uint64_t live = 0;
  std::uint64_t needed = 0;
  std::uint64_t pending = 0;
};

PeakBytes find_peaks(const MemoryTrace& trace) {
  std::uint64_t live_bytes = initial_bytes(trace, BlockState::kAllocated);
  std::uint64_t pending_bytes = initial_bytes(trace, BlockState::kPendingFree);
  PeakBytes peak{live_bytes, live_bytes, pending_bytes};
  for (const TraceOperation& operation : trace.operations) {
    switch (operation.action) {
      case TraceAction::kAlloc:
        live_bytes += trace.allocations[operation.allocation].bytes;
        break;
      case TraceAction::kFree:
        live_bytes -= trace.allocations[operation.allocation].bytes;
        break;
      case TraceAction::kFreePending:
        live_bytes -= trace.allocations[operation.allocation].bytes;
        pending_bytes += trace.allocations[operation.allocation].bytes;
        break;
      case TraceAction::kFreeCompleted:
        pending_bytes -= trace.allocations[operation.allocation].bytes;
        break;
      case TraceAction::kRefused:
        peak.needed =
            std::max(peak.needed, live_bytes + trace.allocations[operation.allocation].bytes);
        break;
      default:
        break;
    }
    peak.live = std::max(peak.live, live_bytes);
    peak.pending = std::max(peak.pending, pending_bytes);
  }
  peak.needed = std::max(peak.needed, peak.live);
  return peak;
}

}  // namespace

std::uint64_t initial_live_bytes(const MemoryTrace& trace) {
  return initial_bytes(trace, BlockState::kAllocated);
}

std::uint64_t peak_live_bytes(const MemoryTrace& trace) {
  return find_peaks(trace).live;
}

std::uint64_t peak_needed_bytes(const MemoryTrace& trace) {
  return find_peaks(trace).needed;
}

std::uint64_t peak_pending_bytes(const MemoryTrace& trace) {
  return find_peaks(trace).pending;
}

MemoryTrace without_refused(const MemoryTrace& trace) {
  MemoryTrace result = trace;
  std::erase_if(result.operations, [](const TraceOperation& operation) {
    return operation.action == TraceAction::kRefused;
  });
  result.refused.clear();
  return result;
}

}  // namespace sluice::record
