// `sluice replay`: runs recorded allocations through allocators.
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "allocator/oom/oom_text.hpp"
#include "allocator/record/format/memory_trace_csv.hpp"
#include "allocator/record/format/torch_snapshot.hpp"
#include "base/error.hpp"
#include "base/json_text.hpp"
#include "tools/replay/explain_out_of_memory.hpp"
#include "tools/replay/generated/trace_generator.hpp"
#include "tools/replay/lifetime_csv.hpp"
#include "tools/replay/own_policies.hpp"
#include "tools/replay/read_trace.hpp"
#include "tools/replay/replay_packing.hpp"
#include "tools/replay/replay_report.hpp"
#include "tools/replay/trace_events.hpp"
#include "tools/sluice/arguments.hpp"
#include "tools/sluice/commands.hpp"

namespace sluice::cli {
namespace {

record::MemoryTrace load_trace(const ReplayArguments& arguments) {
  if (arguments.trace.empty() == arguments.generate.empty()) {
    throw InputError("replay needs a TRACE or --generate FAMILY, one of the two");
  }
  if (!arguments.generate.empty()) {
    replay::GeneratorOptions options;
    options.family = arguments.generate;
    options.seed = arguments.seed;
    options.iterations = arguments.iterations;
    return replay::generate_trace(options);
  }
  replay::ReadTrace read = replay::read_trace(arguments.trace, {.device = arguments.device});
  if (read.defects.contradictions > 0 || read.defects.unknown_frees > 0) {
    std::cerr << "warning: '" << arguments.trace << "': " << read.defects.contradictions
              << " events contradict the snapshot, " << read.defects.unknown_frees
              << " frees of unknown blocks left out\n";
  }
  return std::move(read.trace);
}

void print_event(const nlohmann::json& event, bool json,
                 std::string (*table)(const nlohmann::json&)) {
  if (json) {
    // A path need not be UTF-8.
    std::cout << lenient_json_text(event) << std::endl;
  } else {
    std::cout << table(event);
  }
}

}  // namespace

int replay_command(const ReplayArguments& arguments) {
  const auto capacity_bytes = bytes_argument("--capacity", arguments.capacity);
  const std::vector<replay::NamedPolicy> policies = replay::policies_named(arguments.policies);
  record::MemoryTrace trace = load_trace(arguments);
  if (!arguments.write.empty()) {
    std::ostringstream text;
    record::write_memory_trace_csv(replay::events_of(trace), text);
    write_output("--write", arguments.write, text.str());
    std::cerr << arguments.write << '\n';
  }
  if (trace.format == "lifetimes" && arguments.policies.empty() && arguments.plot.empty() &&
      arguments.snapshot.empty()) {
    print_event(replay::replay_packing(replay::read_lifetime_csv(arguments.trace), arguments.trace,
                                       capacity_bytes),
                arguments.json, replay::replay_table);
    return 0;
  }
  const replay::SteppedTrace stepped = replay::with_steps(std::move(trace));
  replay::ReplayReportOptions options;
  options.capacity_bytes = capacity_bytes;
  options.least_capacity = arguments.least;
  print_event(replay::replay_report(stepped, policies, options), arguments.json,
              replay::replay_report_table);
  const auto has_policy = [&](std::string_view name) {
    return std::any_of(policies.begin(), policies.end(),
                       [&](const replay::NamedPolicy& policy) { return policy.name == name; });
  };
  const bool has_dynamic = has_policy("dynamic");
  if (capacity_bytes && has_dynamic) {
    if (const auto explained = replay::explain_out_of_memory(stepped, *capacity_bytes)) {
      if (arguments.json) {
        print_event(allocator::oom_json(*explained->report, &explained->fixes), true, nullptr);
      } else {
        std::cout << '\n' << allocator::oom_text(*explained->report, &explained->fixes);
      }
    }
  }
  if (!arguments.plot.empty()) {
    write_output("--plot", arguments.plot, replay::plot_replays(stepped, policies));
    std::cerr << arguments.plot << '\n';
  }
  if (!arguments.snapshot.empty()) {
    std::string text;
    record::write_torch_snapshot(
        replay::snapshot_after(stepped.trace, !has_dynamic && has_policy("planned")),
        [&](std::string_view part) { text += part; });
    write_output("--snapshot", arguments.snapshot, text);
    std::cerr << arguments.snapshot << '\n';
  }
  return 0;
}

}  // namespace sluice::cli
