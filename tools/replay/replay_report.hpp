// A trace through all policies, and what came of it, for programs and for people.
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
// In that order. InputError for a name that is none of them.
std::vector<NamedPolicy> policies_named(const std::vector<std::string>& names);

// Marks the iterations that repetition shows, where the record has no marks of its own; what was
// found is in the report.
struct SteppedTrace {
  record::MemoryTrace trace;
  std::string source;  // of the marks: "marks", "repetition", "none"
  std::size_t iteration_count = 0;
  std::uint32_t repeats_after = 0;  // see Iterations; 0: does not repeat
};
SteppedTrace with_steps(record::MemoryTrace trace);

struct ReplayReportOptions {
  std::optional<std::uint64_t> capacity_bytes;  // each policy has "fits" where given
  bool least_capacity = true;                   // find it: some ten replays for each policy
  int timing_rounds = 3;
};

// {"event":"replay", "source", "format", "operations", "allocations", "iterations",
// "repeats_after", "peak_live_bytes", "recorded_peak_reserved_bytes" (where recorded),
// "policies":[{"policy", "peak_reserved_bytes", "fragmentation" (1 - peak live / peak reserved),
// "least_capacity_bytes", "least_above_live" (to peak live, - 1), "flushes", "remaps",
// "synchronisations", "event_waits", "driver_allocations", "ns_per_operation", "fits"}]}. planned
// is scored from the second step that its plan serves: "scored_from" (operation),
// "scored_peak_live_bytes", "scored_peak_reserved_bytes", "planned", "fallbacks"; fragmentation and
// counts are of that part, and absent where no whole iteration was served by a plan. The policy
// that recorded the trace has what the record's device had where memory was short
// (MemoryTrace::recorded_trimming), if it completes so; all others have no end.
nlohmann::json replay_report(const SteppedTrace& stepped, const std::vector<NamedPolicy>& policies,
                             const ReplayReportOptions& options);

// For people: a line for each policy.
std::string replay_report_table(const nlohmann::json& event);

// The replay of one policy as an SVG (address_plot.hpp).
std::string plot_replay(const SteppedTrace& stepped, const NamedPolicy& policy);

}  // namespace sluice::replay
