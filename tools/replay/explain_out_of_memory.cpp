#include "tools/replay/explain_out_of_memory.hpp"

#include <utility>

#include "allocator/oom/oom_simulation.hpp"

namespace sluice::replay {

std::optional<OutOfMemoryExplanation> explain_out_of_memory(
    const SteppedTrace& stepped, std::uint64_t capacity_bytes,
    const allocator::OomFixOptions& options) {
  const record::MemoryTrace& trace = stepped.trace;
  allocator::SimulatedAllocator settings;
  settings.capacity_bytes = capacity_bytes;
  allocator::SimulationOutcome outcome = allocator::simulate(trace, settings);
  if (outcome.completed) return std::nullopt;
  OutOfMemoryExplanation result;
  result.report = std::move(outcome.report);
  if (outcome.failed_at_start) {
    result.fixes.note = "what the trace holds before its first operation does not fit";
    return result;
  }
  const auto failed_operation = static_cast<std::size_t>(outcome.operation_count);
  result.failed_operation = recorded_number(stepped, failed_operation);
  result.fixes = allocator::find_fixes(*result.report, trace, failed_operation, options);
  result.fixes.later_operation_count =
      recorded_number(stepped, trace.operations.size()) - *result.failed_operation - 1;
  return result;
}

}  // namespace sluice::replay
