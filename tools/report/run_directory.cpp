#include "tools/report/run_directory.hpp"

#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "base/log.hpp"
#include "base/units.hpp"
#include "tools/report/untrusted_json.hpp"

namespace sluice::report {

namespace {

using Json = nlohmann::json;
using Path = std::filesystem::path;

// A step takes 200 to 400 bytes, so this is room for more than 500,000 steps.
constexpr std::uint64_t kMaxEventsBytes = 256 * kMiB;
constexpr std::uint64_t kMaxSmallBytes = 1 * kMiB;
constexpr std::size_t kMostRanks = 4096;  // that are shown
// The engine knows nine.
constexpr std::size_t kMaxStallCauses = 64;

TierCounts tier_bytes(const Path& file, const Json& event, const char* key) {
  const Json& object = object_of(file, event, key);
  TierCounts bytes;
  for (const Tier tier : kTiers) {
    bytes[static_cast<std::size_t>(tier)] = count_of(file, object, tier_name(tier).data());
  }
  return bytes;
}

LinkCounts moved_bytes(const Path& file, const Json& event) {
  const Json& object = object_of(file, event, "bytes_moved");
  LinkCounts bytes;
  for (std::size_t link = 0; link < kLinkCount; ++link) {
    bytes[link] = count_of(file, object, kLinkNames[link]);
  }
  return bytes;
}

void load_config(const Path& file, RunDirectory& run) {
  run.config_text = read_file(file, kMaxSmallBytes);
  toml::table table;
  try {
    table = toml::parse(run.config_text);
  } catch (const toml::parse_error& error) {
    refuse(file, "not TOML at line " + std::to_string(error.source().begin.line) + ": " +
                     std::string(error.description()));
  }
  for (const Tier tier : kTiers) {
    auto& budget = run.budget_bytes[static_cast<std::size_t>(tier)];
    const auto value = table["memory"][tier_name(tier)];
    if (const auto* text = value.as_string()) {
      budget = parse_bytes(text->get());  // none for "auto"
    } else if (const auto* number = value.as_integer(); number != nullptr && number->get() >= 0) {
      budget = static_cast<std::uint64_t>(number->get());
    }
  }
}

void load_plan(const Path& file, PlanFacts& plan) {
  const Json event = parse_json(file, read_file(file, kMaxSmallBytes), "");
  if (!event.is_object()) refuse(file, "must hold the plan event, one JSON object");
  plan.quantities.peak_bytes = tier_bytes(file, event, "peak_bytes");
  plan.quantities.bytes_moved = moved_bytes(file, event);
  const double step_time_s = number_of(file, event, "step_time_s");
  if (std::isfinite(step_time_s)) plan.quantities.step_time_s = step_time_s;
  plan.bound_by = text_of(file, event, "bound_by");
  plan.ranks = count_of(file, event, "ranks").value_or(1);
  plan.has_stages = event.contains("pipeline");
  plan.parameters = count_of(file, event, "parameters");
  plan.state_bytes = count_of(file, event, "state_bytes");
}

// The step that was traced: its event alone has `stalls`.
void take_traced_step(const Path& file, const Json& event, std::uint64_t step, RunDirectory& run) {
  if (find(event, "stalls") == nullptr) return;
  const Json& stalls = object_of(file, event, "stalls");
  TracedStep traced;
  traced.step = step;
  traced.commits = flag_of(file, event, "commits");
  traced.compute_s = number_of(file, stalls, "compute_s");
  traced.stalled_s = number_of(file, stalls, "stalled_s");
  const Json& causes = object_of(file, stalls, "by_cause_s");
  if (causes.size() > kMaxStallCauses) refuse(file, "'by_cause_s' has too many causes");
  for (auto entry = causes.begin(); entry != causes.end(); ++entry) {
    const std::string& cause = entry.key();
    const double taken_s = number_of(file, causes, cause.c_str());
    if (std::isfinite(taken_s)) traced.by_cause_s.emplace_back(cause, taken_s);
  }
  std::stable_sort(traced.by_cause_s.begin(), traced.by_cause_s.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  run.traced_step = std::move(traced);
  run.measured_peak_bytes = tier_bytes(file, event, "measured_peak_bytes");
}

void take_event(const Path& file, const Json& event, RunDirectory& run) {
  const std::string kind = text_of(file, event, "event");
  if (kind == "done") {
    run.measured_peak_bytes = tier_bytes(file, event, "measured_peak_bytes");
    run.weights_hash = text_of(file, event, "weights_hash");
  } else if (kind == "step" || kind == "eval" || kind == "evaluation") {
    const auto step = count_of(file, event, "step");
    if (!step) refuse(file, "a " + kind + " event without 'step'");
    const double loss = number_of(file, event, "loss");
    // A run that resumed from an older checkpoint repeats these steps: the later event holds.
    const auto drop_repeated = [&step](auto& earlier) {
      while (!earlier.empty() && earlier.back().step >= *step) earlier.pop_back();
    };
    if (kind != "step") {
      drop_repeated(run.evaluations);
      run.evaluations.push_back({*step, loss});
      return;
    }
    drop_repeated(run.steps);
    run.weights_hash.reset();  // a step after `done`: the run went on
    run.steps.push_back(
        {*step, loss, number_of(file, event, "grad_norm"), number_of(file, event, "lr"),
         number_of(file, event, "tokens_per_s"), number_of(file, event, "step_time_s"),
         number_of(file, event, "stalled_fraction"), number_of(file, event, "redo_time_s"),
         flag_of(file, event, "commits"), moved_bytes(file, event)});
    take_traced_step(file, event, *step, run);
  }
}

// A run that was killed while it wrote leaves a last line that is cut. It is not an event; those
// before it are the run.
void load_events(const Path& file, RunDirectory& run) {
  const std::string text = read_file(file, kMaxEventsBytes);
  std::size_t line_number = 0;
  for (std::size_t begin = 0, end; begin < text.size(); begin = end + 1) {
    end = text.find('\n', begin);
    const bool ends = end != std::string::npos;
    end = ends ? end : text.size();
    ++line_number;
    if (end == begin) continue;
    const std::string where = "line " + std::to_string(line_number) + ": ";
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    const bool is_last = text.find_first_not_of('\n', end) == std::string::npos;
    if (!ends || (is_last && !Json::accept(line))) {
      log(LogLevel::kWarning, "'" + file.string() + "' is cut in line " +
                                  std::to_string(line_number) +
                                  ", as a killed run leaves it; the report ends before that line");
      return;
    }
    const Json event = parse_json(file, line, where);
    if (!event.is_object()) refuse(file, where + "not a JSON object");
    take_event(file, event, run);
  }
}

// Ranks have consecutive numbers. The run may have gone on with fewer ranks: those of the last plan
// count, and of them those whose traced step is the first rank's.
void load_ranks(RunDirectory& run) {
  if (!run.traced_step) return;
  std::error_code error;
  for (std::uint64_t rank = 1; rank < std::min<std::uint64_t>(run.plan.ranks, kMostRanks); ++rank) {
    const Path file = run.path / ("rank-" + std::to_string(rank)) / "events.jsonl";
    if (!std::filesystem::exists(std::filesystem::symlink_status(file, error))) break;
    RunDirectory of_rank;
    load_events(file, of_rank);
    if (!of_rank.traced_step || of_rank.traced_step->step != run.traced_step->step) continue;
    if (run.ranks.empty()) run.ranks.push_back({0, *run.traced_step});
    run.ranks.push_back({rank, std::move(*of_rank.traced_step)});
  }
}

// Every rank of the pipeline has traced the same step, or there is no picture.
void load_pipeline(RunDirectory& run) {
  if (!run.plan.has_stages || run.ranks.size() != run.plan.ranks || run.run_trace.spans.empty()) {
    return;
  }
  RunDirectory::PipelineTrace pipeline;
  std::vector<std::int64_t> starts_ns{run.run_trace.start_ns};
  pipeline.rows.push_back(pipeline_row(0, run.run_trace));
  for (std::uint64_t rank = 1; rank < run.plan.ranks; ++rank) {
    const Path file = run.path / ("rank-" + std::to_string(rank)) / "trace.json";
    std::error_code error;
    if (!std::filesystem::exists(std::filesystem::symlink_status(file, error))) return;
    const TraceFile trace = load_trace(file);
    starts_ns.push_back(trace.start_ns);
    pipeline.rows.push_back(pipeline_row(rank, trace));
  }
  pipeline.one_clock = align_rows(starts_ns, pipeline.rows);
  run.pipeline = std::move(pipeline);
}

}  // namespace

RunDirectory load_run_directory(const Path& run_dir) {
  std::error_code error;
  if (!std::filesystem::is_directory(run_dir, error)) {
    refuse(run_dir, "no such directory; name that of a run, or the log.dir that it lies in");
  }
  RunDirectory run;
  run.path = run_dir;
  load_config(run_dir / "config.toml", run);
  load_plan(run_dir / "plan.json", run.plan);
  load_events(run_dir / "events.jsonl", run);
  load_ranks(run);
  run.plan_trace = load_trace(run_dir / "plan_trace.json");
  // A run that ends before its third step has no trace.
  const Path trace = run_dir / "trace.json";
  if (std::filesystem::exists(std::filesystem::symlink_status(trace, error))) {
    run.run_trace = load_trace(trace);
  }
  load_pipeline(run);
  return run;
}

}  // namespace sluice::report
