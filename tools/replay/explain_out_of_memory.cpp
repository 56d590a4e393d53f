#include "tools/replay/explain_out_of_memory.hpp"

#include <utility>

#include "allocator/oom/oom_simulation.hpp"

namespace sluice::replay {

std::optional<OutOfMemoryExplanation> explain_out_of_memory(
    const record::MemoryTrace& trace, std::uint64_t capacity_bytes,
    const allocator::OomFixOptions& options) {
  allocator::SimulatedAllocator settings;
  settings.capacity_bytes = capacity_bytes;
  allocator::SimulationOutcome outcome = allocator::simulate(trace, settings);
  if (outcome.completed) return std::nullopt;
  OutOfMemoryExplanation result;
  result.failed_operation = static_cast<std::size_t>(outcome.operation_count);
  result.report = std::move(outcome.report);
  if (outcome.failed_at_start) {
    result.fixes.note = "what the trace holds before its first operation does not fit";
    return result;
  }
  result.fixes = allocator::find_fixes(*result.report, trace, result.failed_operation, options);
  return result;
}

}  // namespace sluice::replay
