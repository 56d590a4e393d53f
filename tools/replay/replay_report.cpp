#include "tools/replay/replay_report.hpp"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "allocator/record/iterations.hpp"
#include "base/error.hpp"
#include "base/json_text.hpp"
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

std::uint64_t initial_segment_bytes(const record::MemoryTrace& trace) {
  std::uint64_t bytes = 0;
  for (const record::SnapshotSegment& segment : trace.initial_segments) bytes += segment.bytes;
  return bytes;
}

// The request that a replay could not serve, or the initial memory that it could not hold.
nlohmann::json failure_json(const SteppedTrace& stepped, const ReplayOutcome& outcome) {
  const record::MemoryTrace& trace = stepped.trace;
  if (!outcome.failed_operation) {
    return {{"operation", nullptr},
            {"bytes", initial_segment_bytes(trace)},
            {"live_bytes", outcome.failed_live_bytes},
            {"refused_in_record", false}};
  }
  const record::TraceOperation& operation = trace.operations[*outcome.failed_operation];
  return {{"operation", recorded_number(stepped, *outcome.failed_operation)},
          {"bytes", trace.allocations[operation.allocation].bytes},
          {"live_bytes", outcome.failed_live_bytes},
          {"refused_in_record", operation.action == record::TraceAction::kRefused}};
}

// The recorded_number of each operation that the recording allocator served, and of the end.
std::vector<std::size_t> served_numbers(const SteppedTrace& stepped) {
  const auto& operations = stepped.trace.operations;
  std::vector<std::size_t> numbers;
  numbers.reserve(operations.size() + 1);
  for (std::size_t i = 0; i < operations.size(); ++i) {
    if (operations[i].action == record::TraceAction::kRefused) continue;
    numbers.push_back(recorded_number(stepped, i));
  }
  numbers.push_back(recorded_number(stepped, operations.size()));
  return numbers;
}

// Replays the trace through one policy: once for its peaks, then for the least capacity, for the
// given capacity, and for the time of a call. `recorded` is the trace without its refused requests:
// the peaks are those of the memory that the program got. A policy fits only if it serves those
// requests, too.
nlohmann::json policy_report(const SteppedTrace& stepped, const record::MemoryTrace& recorded,
                             const NamedPolicy& policy, const ReplayReportOptions& options) {
  const record::MemoryTrace& trace = stepped.trace;
  ReplayOutcome outcome = replay_trace(recorded, policy, capacity_of_record(recorded, policy));
  if (!outcome.completed) outcome = replay_trace(recorded, policy);
  nlohmann::json result{{"policy", policy.name}};
  if (options.capacity_bytes || !outcome.completed) {
    const ReplayOutcome limited =
        replay_trace(trace, policy, options.capacity_bytes.value_or(UINT64_MAX));
    if (options.capacity_bytes) result["fits"] = limited.completed;
    if (!limited.completed) result["failure"] = failure_json(stepped, limited);
  }
  if (!outcome.completed) return result;
  result["peak_reserved_bytes"] = outcome.peak_reserved_bytes;
  result["driver_allocations"] = outcome.counters.driver_allocations;
  if (policy.name == "planned" ? served_an_iteration(recorded, outcome) : outcome.was_steady) {
    const PolicyCounters& counters = outcome.steady_counters;
    result["fragmentation"] = outcome.fragmentation();
    result["flushes"] = counters.flushes;
    result["remaps"] = counters.remaps;
    result["synchronisations"] = counters.synchronisations;
    result["event_waits"] = counters.event_waits;
    if (policy.name == "planned") {
      result["scored_from"] = served_numbers(stepped)[outcome.steady_from];
      result["scored_peak_live_bytes"] = outcome.steady_peak_live_bytes;
      result["scored_peak_reserved_bytes"] = outcome.steady_peak_reserved_bytes;
      result["planned"] = counters.planned_count;
      result["fallbacks"] = counters.fallback_count;
    }
  }
  if (options.least_capacity) {
    const ReplayOutcome whole = trace.refused.empty() ? outcome : replay_trace(trace, policy);
    if (whole.completed) {
      const std::uint64_t least_bytes =
          least_capacity_bytes(trace, policy, whole.peak_reserved_bytes);
      result["least_capacity_bytes"] = least_bytes;
      if (whole.peak_live_bytes > 0) {
        result["least_above_live"] =
            static_cast<double>(least_bytes) / static_cast<double>(whole.peak_live_bytes) - 1.0;
      }
    }
  }
  if (const std::size_t count = recorded_number(stepped, trace.operations.size()); count > 0) {
    result["ns_per_operation"] =
        replay_seconds(trace, policy, options.timing_rounds) * 1e9 / static_cast<double>(count);
  }
  return result;
}

// A name from a file, without control characters.
std::string printable_site(std::string name) {
  std::replace_if(
      name.begin(), name.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, '?');
  return name;
}

nlohmann::json refused_json(const SteppedTrace& stepped) {
  const record::MemoryTrace& trace = stepped.trace;
  nlohmann::json requests = nlohmann::json::array();
  auto refused = trace.refused.begin();
  for (std::size_t i = 0; i < trace.operations.size() && refused != trace.refused.end(); ++i) {
    if (trace.operations[i].action != record::TraceAction::kRefused) continue;
    const record::TraceAllocation& allocation = trace.allocations[refused->allocation];
    requests.push_back({{"operation", recorded_number(stepped, i)},
                        {"bytes", allocation.bytes},
                        {"stream", allocation.stream},
                        {"pool", allocation.pool},
                        {"site", trace.names[allocation.name]},
                        {"reserved_bytes", refused->reserved_bytes},
                        {"device_free_bytes", refused->device_free_bytes}});
    ++refused;
  }
  return requests;
}

// The requests that the record refused, the largest first, and then each policy's first failure.
void write_refusals(std::ostream& out, const nlohmann::json& event) {
  constexpr std::size_t kShown = 3;
  const auto bytes_of = [](const nlohmann::json& value, const char* key) {
    return value.at(key).get<std::uint64_t>();
  };
  std::vector<nlohmann::json> refused = event.value("refused", std::vector<nlohmann::json>());
  std::stable_sort(refused.begin(), refused.end(), [&](const auto& a, const auto& b) {
    return bytes_of(a, "bytes") > bytes_of(b, "bytes");
  });
  if (!refused.empty()) {
    out << "the record refused " << refused.size()
        << (refused.size() == 1 ? " request, and a policy fits only if it serves it:\n"
                                : " requests, and a policy fits only if it serves them:\n");
  }
  for (std::size_t r = 0; r < std::min(refused.size(), kShown); ++r) {
    out << "  " << format_bytes(bytes_of(refused[r], "bytes")) << " at operation "
        << refused[r].at("operation") << " on stream " << refused[r].at("stream");
    if (bytes_of(refused[r], "reserved_bytes") > 0) {
      out << ", with " << format_bytes(bytes_of(refused[r], "reserved_bytes")) << " reserved and "
          << format_bytes(bytes_of(refused[r], "device_free_bytes")) << " free";
    }
    const std::string site = printable_site(refused[r].at("site").get<std::string>());
    if (!site.empty()) out << "\n    " << site;
    out << '\n';
  }
  if (refused.size() > kShown) out << "  and " << refused.size() - kShown << " smaller ones\n";
  for (const nlohmann::json& policy : event.at("policies")) {
    if (!policy.contains("failure")) continue;
    const nlohmann::json& failure = policy.at("failure");
    out << policy.at("policy").get<std::string>();
    if (failure.at("operation").is_null()) {
      out << " has no room for the memory held before the first operation: "
          << format_bytes(bytes_of(failure, "live_bytes")) << " live in "
          << format_bytes(bytes_of(failure, "bytes")) << " of segments\n";
      continue;
    }
    out << " refuses " << format_bytes(bytes_of(failure, "bytes")) << " at operation "
        << failure.at("operation") << ", with " << format_bytes(bytes_of(failure, "live_bytes"))
        << " live"
        << (failure.at("refused_in_record").get<bool>() ? ", as the record does\n" : "\n");
  }
}

// `numbers` are the served_numbers of the trace, which has no refused requests.
AddressPlot replay_plot(const record::MemoryTrace& trace, const std::vector<std::size_t>& numbers,
                        const NamedPolicy& policy) {
  ReplayRecord record;
  replay_trace(trace, policy, UINT64_MAX, &record);
  AddressPlot plot;
  plot.title = trace.source + ", " + policy.name;
  plot.operations = numbers.back();
  for (const PlacedAllocation& placed : record.placed) {
    const record::TraceAllocation& allocation = trace.allocations[placed.allocation];
    plot.blocks.push_back({placed.address, allocation.bytes, numbers[placed.begin],
                           numbers[placed.end], allocation.stream, allocation.category,
                           trace.names[allocation.name]});
  }
  for (const ReservedSample& sample : record.samples) {
    plot.reserved.push_back({numbers[sample.operation], sample.reserved_bytes});
  }
  for (std::size_t i = 0; i < trace.operations.size(); ++i) {
    if (trace.operations[i].action == record::TraceAction::kStep) plot.steps.push_back(numbers[i]);
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
        stepped.added_marks.push_back(operations.size());
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

std::size_t recorded_number(const SteppedTrace& stepped, std::size_t operation) {
  const auto& marks = stepped.added_marks;
  const auto before = std::lower_bound(marks.begin(), marks.end(), operation) - marks.begin();
  return operation - static_cast<std::size_t>(before);
}

nlohmann::json replay_report(const SteppedTrace& stepped, const std::vector<NamedPolicy>& policies,
                             const ReplayReportOptions& options) {
  const record::MemoryTrace& trace = stepped.trace;
  nlohmann::json event{{"event", "replay"},
                       {"source", trace.source},
                       {"format", trace.format},
                       {"operations", recorded_number(stepped, trace.operations.size())},
                       {"allocations", trace.allocations.size()},
                       {"iterations", stepped.iteration_count},
                       {"iterations_from", stepped.source},
                       {"repeats_after", stepped.repeats_after},
                       {"peak_live_bytes", record::peak_live_bytes(trace)}};
  if (trace.recorded_peak_reserved_bytes > 0) {
    event["recorded_peak_reserved_bytes"] = trace.recorded_peak_reserved_bytes;
  }
  if (const std::uint64_t pending_bytes = record::peak_pending_bytes(trace); pending_bytes > 0) {
    event["peak_pending_bytes"] = pending_bytes;
  }
  if (!trace.refused.empty()) {
    event["peak_needed_bytes"] = record::peak_needed_bytes(trace);
    event["refused"] = refused_json(stepped);
  }
  if (trace.host_segment_count > 0) {
    event["host_segments"] = trace.host_segment_count;
    event["host_bytes"] = trace.host_bytes;
  }
  record::MemoryTrace served;
  if (!trace.refused.empty()) served = record::without_refused(trace);
  const record::MemoryTrace& recorded = trace.refused.empty() ? trace : served;
  nlohmann::json results = nlohmann::json::array();
  for (const NamedPolicy& policy : policies) {
    results.push_back(policy_report(stepped, recorded, policy, options));
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
  if (event.contains("peak_pending_bytes")) {
    out << ", " << format_bytes(event.at("peak_pending_bytes").get<std::uint64_t>())
        << " freed but not yet reusable";
  }
  if (event.contains("host_bytes")) {
    out << "\npinned host memory is not replayed: "
        << format_bytes(event.at("host_bytes").get<std::uint64_t>()) << " in "
        << event.at("host_segments") << " segments at the end of the record";
  }
  out << "\npolicy      reserved   fragments   least fits   above live   flushes   remaps   syncs"
         "    waits   ns/op\n";
  const auto count = [](const nlohmann::json& policy, const char* key) {
    return policy.contains(key) ? json_text(policy.at(key)) : std::string("-");
  };
  const auto bytes = [](const nlohmann::json& policy, const char* key) {
    return policy.contains(key) ? format_bytes(policy.at(key).get<std::uint64_t>()) : "-";
  };
  const auto nanoseconds = [](const nlohmann::json& policy) {
    if (!policy.contains("ns_per_operation")) return std::string("-");
    return std::to_string(std::llround(policy.at("ns_per_operation").get<double>()));
  };
  for (const nlohmann::json& policy : event.at("policies")) {
    const bool scored = policy.contains("scored_peak_reserved_bytes");
    out << std::left << std::setw(10) << policy.at("policy").get<std::string>() << std::right
        << std::setw(10)
        << bytes(policy, scored ? "scored_peak_reserved_bytes" : "peak_reserved_bytes")
        << std::setw(12)
        << (policy.contains("fragmentation") ? percent(policy.at("fragmentation").get<double>())
            : policy.contains("peak_reserved_bytes") ? "no plan"
                                                     : "-")
        << std::setw(13) << bytes(policy, "least_capacity_bytes") << std::setw(13)
        << (policy.contains("least_above_live")
                ? percent(policy.at("least_above_live").get<double>())
                : "-")
        << std::setw(10) << count(policy, "flushes") << std::setw(9) << count(policy, "remaps")
        << std::setw(8) << count(policy, "synchronisations") << std::setw(9)
        << count(policy, "event_waits") << std::setw(8) << nanoseconds(policy);
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
  write_refusals(out, event);
  return out.str();
}

std::string plot_replays(const SteppedTrace& stepped, const std::vector<NamedPolicy>& policies) {
  std::vector<AddressPlot> plots;
  // What the program got, as in the table; requests that the record refused take no place.
  const record::MemoryTrace recorded = record::without_refused(stepped.trace);
  const std::vector<std::size_t> numbers = served_numbers(stepped);
  for (const NamedPolicy& policy : policies)
    plots.push_back(replay_plot(recorded, numbers, policy));
  for (AddressPlot& plot : plots) {
    plot.max_rectangles = std::min(plot.max_rectangles, kMaxRectanglesInAll / plots.size());
  }
  return draw_address_plots(plots);
}

}  // namespace sluice::replay
