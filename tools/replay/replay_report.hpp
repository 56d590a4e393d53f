// Replays a trace through policies, and reports the results as JSON, as a table and as a picture.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/replay/policy/replay_policy.hpp"
#include "tools/replay/policy/replay_trace.hpp"

namespace sluice::replay {

// native, expandable, dynamic, planned.
std::vector<NamedPolicy> all_policies();
// The policies with these names, in the order of all_policies(); all if no name is given.
// InputError for an unknown name.
std::vector<NamedPolicy> policies_named(const std::vector<std::string>& names);

// A trace with a mark at the begin of each iteration.
struct SteppedTrace {
  record::MemoryTrace trace;
  std::vector<std::size_t> added_marks;  // operations of `trace` that the record lacks, ascending
  std::string source;  // of the marks: the record's own "marks", "repetition", or "none"
  std::size_t iteration_count = 0;
  std::uint32_t repeats_after = 0;  // see Iterations; 0 if the trace does not repeat
};
// Adds marks where repetition shows iterations, if the record has no marks of its own.
SteppedTrace with_steps(record::MemoryTrace trace);
// The number in the record of an operation of `stepped.trace`: without the added marks before it.
std::size_t recorded_number(const SteppedTrace& stepped, std::size_t operation);

struct ReplayReportOptions {
  std::optional<std::uint64_t> capacity_bytes;  // if given, each policy has "fits"
  bool least_capacity = true;  // search for it, which takes some ten replays for each policy
  int timing_rounds = 3;
};

// {"event":"replay", "source", "format", "operations", "allocations", "iterations",
// "repeats_after", "peak_live_bytes", "recorded_peak_reserved_bytes" (where recorded),
// "policies":[{"policy", "peak_reserved_bytes", "fragmentation" (1 - peak live / peak reserved),
// "least_capacity_bytes", "least_above_live" (its ratio to the peak live or needed, - 1),
// "flushes", "remaps", "synchronisations", "event_waits", "driver_allocations",
// "ns_per_operation", "fits", "failure"}]}.
//
// "failure" is present if the policy does not complete: "operation", "bytes", "live_bytes" and
// "refused_in_record" of the request. If the memory that the record begins with does not fit,
// "operation" is null and "bytes" is the size of its segments. Operations are counted from 0 as the
// record has them, without marks that with_steps added. A policy that does not even complete with
// unlimited memory (a simulated device of ours holds 4 TiB) has no other figures.
//
// A trace may have requests that its own allocator refused: "refused" [{"operation", "bytes",
// "stream", "pool", "site", "reserved_bytes", "device_free_bytes"}], and "peak_needed_bytes" with
// them. "fits" and "least_capacity_bytes" demand that the policy serves them where they stand;
// "least_capacity_bytes" is absent if none suffices. All other figures are without them.
// "peak_pending_bytes", "host_bytes" and "host_segments" are present where they are not 0.
//
// The planned policy is scored from the second step that its plan serves: "scored_from"
// (operation), "scored_peak_live_bytes", "scored_peak_reserved_bytes", "planned", "fallbacks". Its
// fragmentation and counts are those of that part. They are absent if no plan served a whole
// iteration.
//
// The policy that recorded the trace runs with the memory of the record's device if memory was
// short there (MemoryTrace::recorded_trimming) and if it completes so. Others have unlimited
// memory.
nlohmann::json replay_report(const SteppedTrace& stepped, const std::vector<NamedPolicy>& policies,
                             const ReplayReportOptions& options);

// A table with a line for each policy.
std::string replay_report_table(const nlohmann::json& event);

// One SVG document with a plot of each policy's replay (address_plot.hpp).
std::string plot_replays(const SteppedTrace& stepped, const std::vector<NamedPolicy>& policies);

}  // namespace sluice::replay
