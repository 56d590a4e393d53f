// Explains why a trace does not fit in a given memory under our own allocator, and finds changes
// with which it would.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "allocator/caching/oom_report.hpp"
#include "allocator/oom/oom_fixes.hpp"
#include "tools/replay/replay_report.hpp"

namespace sluice::replay {

struct OutOfMemoryExplanation {
  // As the record numbers it (recorded_number). None if the memory that the trace begins with did
  // not fit.
  std::optional<std::size_t> failed_operation;
  std::shared_ptr<const allocator::OomReport> report;
  allocator::OomFixes fixes;
};

// Replays the trace through a CachingAllocator with its default options (the policy "dynamic") on a
// device of `capacity_bytes`. Reports the first request that fails, and fixes with which the whole
// trace completes. Returns nothing if it completes as it is. If the blocks that the trace begins
// with do not fit, the result has a report, no failed operation and no fixes.
std::optional<OutOfMemoryExplanation> explain_out_of_memory(
    const SteppedTrace& stepped, std::uint64_t capacity_bytes,
    const allocator::OomFixOptions& options = {});

}  // namespace sluice::replay
