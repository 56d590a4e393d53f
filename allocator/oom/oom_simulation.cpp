// Answers "would this have fitted?" by doing it. The recorded trace runs from its first event to
// its last through a fresh allocator with the changed settings, over a device that only counts
// bytes. No memory is touched, so a trace of many gigabytes takes a moment. An out-of-memory inside
// the simulation ends it, and its report is translated into the trace's own streams and names.
// Plans are made in the foreground, so that a simulation gives the same answer each time.
#include "allocator/oom/oom_simulation.hpp"

#include <string>
#include <tuple>
#include <utility>

#include "allocator/oom/replayed_allocator.hpp"

namespace sluice::allocator {
namespace {

ReplayedAllocatorOptions options_of(const SimulatedAllocator& settings) {
  ReplayedAllocatorOptions options;
  options.capacity_bytes = settings.capacity_bytes;
  options.caching = settings.options;
  options.caching.recorder = nullptr;
  options.fixed_streams = settings.fixed_streams;
  if (settings.plans) options.planning.emplace().in_background = false;  // for determinism
  return options;
}

// Replaces the simulated allocator's streams and names in the report by those of the trace.
std::shared_ptr<const OomReport> in_words_of_trace(OomReport report,
                                                   const record::MemoryTrace& trace,
                                                   const ReplayedAllocator& allocator) {
  const auto stream_of = [&](std::uint64_t id) {
    return allocator.stream_name(static_cast<StreamId>(id));
  };
  if (const auto name = stream_of(report.stream)) report.stream = name->first;
  std::erase_if(report.streams, [&](const OomStream& one) { return !stream_of(one.stream); });
  for (OomStream& one : report.streams) std::tie(one.stream, one.pool) = *stream_of(one.stream);
  const auto name_of = [&](std::uint32_t number) {
    return number < trace.names.size() ? trace.names[number] : std::string();
  };
  report.site = name_of(report.site_number);
  for (OomSite& site : report.sites) {
    if (site.name.empty()) site.name = name_of(site.number);
  }
  return std::make_shared<const OomReport>(std::move(report));
}

}  // namespace

SimulationOutcome simulate(const record::MemoryTrace& trace, const SimulatedAllocator& settings) {
  ReplayedAllocator allocator(trace, options_of(settings));
  SimulationOutcome outcome;
  outcome.failed_at_start = true;
  try {
    allocator.adopt();
    outcome.failed_at_start = false;
    for (const record::TraceOperation& operation : trace.operations) {
      if (outcome.operation_count == settings.freed_at) {
        for (const std::uint32_t id : settings.freed_early) allocator.free(id, false);
      }
      allocator.follow(operation);
      if (operation.action == record::TraceAction::kStep && settings.releases_each_step)
        allocator.flush();
      ++outcome.operation_count;
    }
    outcome.completed = true;
  } catch (const OutOfMemoryReported& error) {
    outcome.report = in_words_of_trace(*error.report, trace, allocator);
  }
  outcome.peak_reserved_bytes = allocator.caching().statistics().peak_reserved_bytes;
  return outcome;
}

}  // namespace sluice::allocator
