#include "tools/replay/explain_out_of_memory.hpp"

#include <utility>

#include "allocator/oom/oom_simulation.hpp"

namespace sluice {

std::optional<OutOfMemoryExplanation> explain_out_of_memory(const MemoryTrace& trace,
                                                            std::uint64_t capacity_bytes,
                                                            const OomFixOptions& options) {
  SimulatedAllocator settings;
  settings.capacity_bytes = capacity_bytes;
  SimulationOutcome outcome = simulate(trace, settings);
  if (outcome.completed) return std::nullopt;
  OutOfMemoryExplanation result;
  result.failed_operation = static_cast<std::size_t>(outcome.operation_count);
  result.report = std::move(outcome.report);
  if (outcome.failed_at_start) {
    result.fixes.note = "what the trace holds before its first operation does not fit";
    return result;
  }
  MemoryTrace until = trace;
  until.operations.resize(result.failed_operation + 1);
  result.fixes = find_fixes(*result.report, until, options);
  return result;
}

}  // namespace sluice
