#include "tools/replay/replay_report.hpp"

#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "allocator/record/iterations.hpp"
#include "base/error.hpp"
#include "base/units.hpp"
#include "tools/replay/address_plot.hpp"
#include "tools/replay/own_policies.hpp"
#include "tools/replay/peers/peers.hpp"

namespace sluice::replay {
namespace {

// Bounds the size of a document with the plots of several policies.
constexpr std::size_t kMaxRectanglesInAll = 40'000;

// The memory of the recording device, as far as its own allocator could tell. UINT64_MAX for other
// policies.
std::uint64_t capacity_of_record(const record::MemoryTrace& trace, const NamedPolicy& policy) {
  const bool recorded_it = policy.name == (trace.expandable_segments ? "expandable" : "native");
  return recorded_it && trace.recorded_trimming ? trace.recorded_peak_reserved_bytes : UINT64_MAX;
}

// Whether the plan served a whole iteration. A part of one may hold little of the memory that the
// plan reserves.
bool served_an_iteration(const record::MemoryTrace& trace, const ReplayOutcome& outcome) {
  const std::vector<record::IterationRange> ranges = record::find_iterations(trace).ranges;
  return outcome.was_steady && !ranges.empty() && ranges.back().begin >= outcome.steady_from;
}

// Replays the trace through one policy: once for its peaks, then for the least capacity, for the
// given capacity, and for the time of a call.
nlohmann::json policy_report(const record::MemoryTrace& trace, const NamedPolicy& policy,
                             const ReplayReportOptions& options) {
  ReplayOutcome outcome = replay_trace(trace, policy, capacity_of_record(trace, policy));
  if (!outcome.completed) outcome = replay_trace(trace, policy);
  nlohmann::json result{{"policy", policy.name},
                        {"peak_reserved_bytes", outcome.peak_reserved_bytes},
                        {"driver_allocations", outcome.counters.driver_allocations}};
  if (policy.name == "planned" ? served_an_iteration(trace, outcome) : outcome.was_steady) {
    const PolicyCounters& counters = outcome.steady_counters;
    result["fragmentation"] = outcome.fragmentation();
    result["flushes"] = counters.flushes;
    result["remaps"] = counters.remaps;
    result["synchronisations"] = counters.synchronisations;
    result["event_waits"] = counters.event_waits;
    if (policy.name == "planned") {
      result["scored_from"] = outcome.steady_from;
      result["scored_peak_live_bytes"] = outcome.steady_peak_live_bytes;
      result["scored_peak_reserved_bytes"] = outcome.steady_peak_reserved_bytes;
      result["planned"] = counters.planned_count;
      result["fallbacks"] = counters.fallback_count;
    }
  }
  if (options.least_capacity) {
    const std::uint64_t least_bytes =
        least_capacity_bytes(trace, policy, outcome.peak_reserved_bytes);
    result["least_capacity_bytes"] = least_bytes;
    if (outcome.peak_live_bytes > 0) {
      result["least_above_live"] =
          static_cast<double>(least_bytes) / static_cast<double>(outcome.peak_live_bytes) - 1.0;
    }
  }
  if (options.capacity_bytes) {
    result["fits"] = replay_trace(trace, policy, *options.capacity_bytes).completed;
  }
  if (!trace.operations.empty()) {
    result["ns_per_operation"] = replay_seconds(trace, policy, options.timing_rounds) * 1e9 /
                                 static_cast<double>(trace.operations.size());
  }
  return result;
}

AddressPlot replay_plot(const record::MemoryTrace& trace, const NamedPolicy& policy) {
  ReplayRecord record;
  replay_trace(trace, policy, UINT64_MAX, &record);
  AddressPlot plot;
  plot.title = trace.source + ", " + policy.name;
  plot.operations = trace.operations.size();
  for (const PlacedAllocation& placed : record.placed) {
    const record::TraceAllocation& allocation = trace.allocations[placed.allocation];
    plot.blocks.push_back({placed.address, allocation.bytes, placed.begin, placed.end,
                           allocation.stream, allocation.category, trace.names[allocation.name]});
  }
  for (const ReservedSample& sample : record.samples) {
    plot.reserved.push_back({sample.operation, sample.reserved_bytes});
  }
  for (std::size_t i = 0; i < trace.operations.size(); ++i) {
    if (trace.operations[i].action == record::TraceAction::kStep) plot.steps.push_back(i);
  }
  // A trace without categories is coloured by size.
  const bool has_category =
      std::any_of(trace.allocations.begin(), trace.allocations.end(),
                  [](const auto& one) { return one.category != Category::kExternal; });
  plot.colour = has_category ? PlotColour::kCategory : PlotColour::kSize;
  return plot;
}

std::string percent(double share) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(2) << 100.0 * share << '%';
  return out.str();
}

}  // namespace

std::vector<NamedPolicy> all_policies() {
  std::vector<NamedPolicy> policies = peer_policies();
  policies.push_back(dynamic_policy());
  policies.push_back(planned_policy());
  return policies;
}

std::vector<NamedPolicy> policies_named(const std::vector<std::string>& names) {
  std::vector<NamedPolicy> policies = all_policies();
  if (names.empty()) return policies;
  for (const std::string& name : names) {
    if (std::any_of(policies.begin(), policies.end(),
                    [&](const NamedPolicy& policy) { return policy.name == name; })) {
      continue;
    }
    std::string known;
    for (const NamedPolicy& policy : policies) known += (known.empty() ? "" : ", ") + policy.name;
    throw InputError("--policy '" + name + "' does not exist; there are: " + known);
  }
  std::erase_if(policies, [&](const NamedPolicy& policy) {
    return std::find(names.begin(), names.end(), policy.name) == names.end();
  });
  return policies;
}

SteppedTrace with_steps(record::MemoryTrace trace) {
  SteppedTrace stepped;
  const record::Iterations iterations = record::find_iterations(trace);
  stepped.iteration_count = iterations.ranges.size();
  stepped.repeats_after = iterations.repeats_after;
  stepped.source = iterations.source == record::IterationSource::kMarks        ? "marks"
                   : iterations.source == record::IterationSource::kRepetition ? "repetition"
                                                                               : "none";
  if (iterations.source == record::IterationSource::kRepetition) {
    std::vector<record::TraceOperation> operations;
    operations.reserve(trace.operations.size() + iterations.ranges.size() + 1);
    std::size_t next = 0;
    const auto& ranges = iterations.ranges;
    for (std::size_t i = 0; i <= trace.operations.size(); ++i) {
      const bool begins = next < ranges.size() && ranges[next].begin == i;
      const bool ends = next == ranges.size() && !ranges.empty() && ranges.back().end == i;
      if (begins || ends) {
        operations.push_back({record::TraceAction::kStep, 0});
        ++next;
      }
      if (i < trace.operations.size()) operations.push_back(trace.operations[i]);
    }
    trace.operations = std::move(operations);
  }
  stepped.trace = std::move(trace);
  return stepped;
}

nlohmann::json replay_report(const SteppedTrace& stepped, const std::vector<NamedPolicy>& policies,
                             const ReplayReportOptions& options) {
  const record::MemoryTrace& trace = stepped.trace;
  nlohmann::json event{{"event", "replay"},
                       {"source", trace.source},
                       {"format", trace.format},
                       {"operations", trace.operations.size()},
                       {"allocations", trace.allocations.size()},
                       {"iterations", stepped.iteration_count},
                       {"iterations_from", stepped.source},
                       {"repeats_after", stepped.repeats_after},
                       {"peak_live_bytes", record::peak_live_bytes(trace)}};
  if (trace.recorded_peak_reserved_bytes > 0) {
    event["recorded_peak_reserved_bytes"] = trace.recorded_peak_reserved_bytes;
  }
  nlohmann::json results = nlohmann::json::array();
  for (const NamedPolicy& policy : policies) {
    results.push_back(policy_report(trace, policy, options));
  }
  event["policies"] = std::move(results);
  return event;
}

std::string replay_report_table(const nlohmann::json& event) {
  std::ostringstream out;
  out << event.at("source").get<std::string>() << ": " << event.at("operations") << " operations, "
      << event.at("iterations") << " iterations (from "
      << event.at("iterations_from").get<std::string>() << "), "
      << format_bytes(event.at("peak_live_bytes").get<std::uint64_t>()) << " live at most";
  if (event.contains("recorded_peak_reserved_bytes")) {
    out << ", " << format_bytes(event.at("recorded_peak_reserved_bytes").get<std::uint64_t>())
        << " reserved in the record";
  }
  out << "\npolicy      reserved   fragments   least fits   above live   flushes   remaps   syncs"
         "    waits   ns/op\n";
  const auto count = [](const nlohmann::json& policy, const char* key) {
    return policy.contains(key) ? policy.at(key).dump() : std::string("-");
  };
  for (const nlohmann::json& policy : event.at("policies")) {
    const bool scored = policy.contains("scored_peak_reserved_bytes");
    out << std::left << std::setw(10) << policy.at("policy").get<std::string>() << std::right
        << std::setw(10)
        << format_bytes(policy.at(scored ? "scored_peak_reserved_bytes" : "peak_reserved_bytes")
                            .get<std::uint64_t>())
        << std::setw(12)
        << (policy.contains("fragmentation") ? percent(policy.at("fragmentation").get<double>())
                                             : "no plan")
        << std::setw(13)
        << (policy.contains("least_capacity_bytes")
                ? format_bytes(policy.at("least_capacity_bytes").get<std::uint64_t>())
                : "-")
        << std::setw(13)
        << (policy.contains("least_above_live")
                ? percent(policy.at("least_above_live").get<double>())
                : "-")
        << std::setw(10) << count(policy, "flushes") << std::setw(9) << count(policy, "remaps")
        << std::setw(8) << count(policy, "synchronisations") << std::setw(9)
        << count(policy, "event_waits") << std::setw(8) << std::fixed << std::setprecision(0)
        << policy.value("ns_per_operation", 0.0);
    if (policy.contains("fits"))
      out << (policy.at("fits").get<bool>() ? "   fits" : "   too large");
    out << '\n';
  }
  for (const nlohmann::json& policy : event.at("policies")) {
    if (!policy.contains("scored_from")) continue;
    out << "planned is scored from operation " << policy.at("scored_from")
        << " on: " << policy.at("planned") << " allocations by the plan, " << policy.at("fallbacks")
        << " not, at most "
        << format_bytes(policy.at("scored_peak_live_bytes").get<std::uint64_t>()) << " live\n";
  }
  return out.str();
}

std::string plot_replays(const SteppedTrace& stepped, const std::vector<NamedPolicy>& policies) {
  std::vector<AddressPlot> plots;
  for (const NamedPolicy& policy : policies) plots.push_back(replay_plot(stepped.trace, policy));
  for (AddressPlot& plot : plots) {
    plot.max_rectangles = std::min(plot.max_rectangles, kMaxRectanglesInAll / plots.size());
  }
  return draw_address_plots(plots);
}

}  // namespace sluice::replay
