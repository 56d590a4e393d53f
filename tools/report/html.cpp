// Writes the facts of a run as JSON into the page. page.js draws the page from it in the browser.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json_text.hpp"
#include "tools/palette/palette.hpp"
#include "tools/report/page.hpp"
#include "tools/report/report.hpp"
#include "tools/report/run_directory.hpp"
#include "tools/report/trace_analysis.hpp"

namespace sluice::report {

namespace {

using Json = nlohmann::json;

// Bounds on what a screen shows and a browser draws at once. The longest spans are kept.
constexpr std::size_t kMaxDrawnSpans = 200000;
constexpr std::size_t kMaxMemorySamples = 2000;
constexpr std::size_t kMaxCurvePoints = 4000;
// A lane of many rows gets thinner ones: it is never higher than six of full height.
constexpr double kRowPixels = 17;
constexpr double kMaxLanePixels = 6 * kRowPixels;

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}
// JSON has no NaN: null stands for it.
Json finite_or_null(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

// All steps if they are few; otherwise every n-th and the last.
Json curves_json(const std::vector<StepFacts>& steps) {
  Json curves = {{"step", Json::array()},         {"loss", Json::array()},
                 {"grad_norm", Json::array()},    {"lr", Json::array()},
                 {"tokens_per_s", Json::array()}, {"step_time_s", Json::array()},
                 {"stalled", Json::array()}};
  const std::size_t stride = steps.size() / kMaxCurvePoints + 1;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (i % stride != 0 && i + 1 != steps.size()) continue;
    curves["step"].push_back(steps[i].step);
    curves["loss"].push_back(finite_or_null(steps[i].loss));
    curves["grad_norm"].push_back(finite_or_null(steps[i].grad_norm));
    curves["lr"].push_back(finite_or_null(steps[i].lr));
    curves["tokens_per_s"].push_back(finite_or_null(steps[i].tokens_per_s));
    curves["step_time_s"].push_back(finite_or_null(steps[i].step_time_s));
    curves["stalled"].push_back(finite_or_null(steps[i].stalled_fraction));
  }
  return curves;
}

// The number of logged steps whose update was made twice, and the time that this took. Null if no
// step was speculative.
Json redone_json(const std::vector<StepFacts>& steps) {
  std::size_t speculative = 0;
  std::size_t redone = 0;
  double seconds = 0;
  for (const StepFacts& step : steps) {
    if (!std::isfinite(step.redo_time_s)) continue;
    ++speculative;
    redone += step.redo_time_s > 0 ? 1 : 0;
    seconds += step.redo_time_s;
  }
  if (speculative == 0) return nullptr;
  return {{"steps", redone}, {"of", speculative}, {"seconds", seconds}};
}

Json memory_json(const TraceFile& trace, Tier tier) {
  const MemorySeries series = memory_of(trace, tier, kMaxMemorySamples);
  Json categories = Json::array();
  for (const Category category : series.categories) categories.push_back(category_name(category));
  return {{"categories", categories},
          {"time", series.time_ns},
          {"bytes", series.bytes},
          {"peak", series.peak_bytes}};
}

// Spans as arrays, lane by lane: [row, op, begin, duration, unit, microbatch, bytes, step].
Json lanes_json(const TraceFile& trace, const std::vector<LaneView>& lanes) {
  std::int64_t shortest_ns = 0;
  if (trace.spans.size() > kMaxDrawnSpans) {
    std::vector<std::int64_t> durations;
    for (const TraceSpan& span : trace.spans) durations.push_back(span.end_ns - span.begin_ns);
    std::nth_element(durations.begin(), durations.begin() + kMaxDrawnSpans, durations.end(),
                     std::greater<>());
    shortest_ns = durations[kMaxDrawnSpans] + 1;
  }
  std::size_t left_out = 0;
  Json tracks = Json::array();
  for (const LaneView& lane : lanes) {
    Json spans = Json::array();
    for (std::size_t i = 0; i < lane.spans.size(); ++i) {
      const TraceSpan& span = trace.spans[lane.spans[i]];
      if (span.end_ns - span.begin_ns < shortest_ns) {
        ++left_out;
        continue;
      }
      spans.push_back({lane.rows[i], span.name, span.begin_ns, span.end_ns - span.begin_ns,
                       span.unit, span.microbatch, span.bytes, span.step});
    }
    tracks.push_back({{"name", trace.names[lane.track]},
                      {"rows", lane.row_count},
                      {"row_pixels", std::min(kRowPixels, kMaxLanePixels / lane.row_count)},
                      {"busy", lane.busy_ns},
                      {"spans", std::move(spans)}});
  }
  return {{"names", trace.names},
          {"end", trace.end_ns},
          {"steps", step_count(trace)},
          {"left_out", left_out},
          {"tracks", std::move(tracks)}};
}

// The median step after the first, which also does work that is needed only once.
std::optional<double> typical_step_time_s(const std::vector<StepFacts>& steps) {
  std::vector<double> times;
  for (std::size_t i = steps.size() > 1 ? 1 : 0; i < steps.size(); ++i) {
    if (std::isfinite(steps[i].step_time_s)) times.push_back(steps[i].step_time_s);
  }
  if (times.empty()) return std::nullopt;
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

// The last logged step that did not commit: the plan's figures are those of such a step. The last
// of all if every step committed; null if there is none.
const StepFacts* ordinary_step(const std::vector<StepFacts>& steps) {
  const auto found = std::find_if(steps.rbegin(), steps.rend(),
                                  [](const StepFacts& step) { return !step.commits; });
  if (found != steps.rend()) return &*found;
  return steps.empty() ? nullptr : &steps.back();
}

Json comparison_json(const RunDirectory& run) {
  Json rows = Json::array();
  const auto row = [&](const std::string& quantity, const char* unit, Json plan, Json measured) {
    if (plan.is_null() && measured.is_null()) return;
    rows.push_back({{"quantity", quantity},
                    {"unit", unit},
                    {"plan", std::move(plan)},
                    {"run", std::move(measured)}});
  };
  const StepFacts* const step = ordinary_step(run.steps);
  row("Step time, median after the first", "s", or_null(run.plan.quantities.step_time_s),
      or_null(typical_step_time_s(run.steps)));
  for (std::size_t link = 0; link < kLinkCount; ++link) {
    std::string name = kLinkNames[link];
    std::replace(name.begin(), name.end(), '_', ' ');
    row("Moved in one step: " + name, "bytes", or_null(run.plan.quantities.bytes_moved[link]),
        step == nullptr ? Json(nullptr) : or_null(step->bytes_moved[link]));
  }
  for (const Tier tier : kTiers) {
    const auto i = static_cast<std::size_t>(tier);
    row("Peak, measured: " + std::string(tier_name(tier)), "bytes",
        or_null(run.plan.quantities.peak_bytes[i]), or_null(run.measured_peak_bytes[i]));
  }
  return rows;
}

// Null if no step was traced, or if its event has no figures (of an older version).
Json traced_step_json(const RunDirectory& run) {
  if (!run.traced_step) return nullptr;
  const TracedStep& traced = *run.traced_step;
  Json causes = Json::array();
  for (const auto& [cause, seconds] : traced.by_cause_s) {
    causes.push_back({{"cause", cause}, {"seconds", seconds}});
  }
  return {{"step", traced.step},
          {"commits", traced.commits},
          {"compute_s", finite_or_null(traced.compute_s)},
          {"stalled_s", finite_or_null(traced.stalled_s)},
          {"by_cause", std::move(causes)}};
}

// The cause for which the rank stood still longest, other ranks apart.
std::string longest_own_cause(const TracedStep& step) {
  for (const auto& [cause, seconds] : step.by_cause_s) {
    if (cause != "comm" && seconds > 0) return cause;
  }
  return {};
}

// Each rank's traced step. The ranks take equally long, because they wait for each other: the one
// that waited least for the others is the slowest.
Json ranks_json(const std::vector<RankFacts>& ranks) {
  if (ranks.empty()) return nullptr;
  Json rows = Json::array();
  for (const RankFacts& rank : ranks) {
    double waited_s = 0;
    for (const auto& [cause, seconds] : rank.traced_step.by_cause_s) {
      if (cause == "comm") waited_s = seconds;
    }
    const double total_s = rank.traced_step.compute_s + rank.traced_step.stalled_s;
    rows.push_back({{"rank", rank.rank},
                    {"step", rank.traced_step.step},
                    {"total_s", finite_or_null(total_s)},
                    {"compute_s", finite_or_null(rank.traced_step.compute_s)},
                    {"waited_s", waited_s},
                    {"own_s", finite_or_null(total_s - waited_s)},
                    {"cause", longest_own_cause(rank.traced_step)}});
  }
  return rows;
}

// Passes as arrays: [kind, first unit, last unit, micro-batch, begin, duration].
Json pipeline_json(const RunDirectory& run) {
  if (!run.pipeline) return nullptr;
  static constexpr std::array<const char*, 4> kKinds{"forward", "recompute", "backward input",
                                                     "backward weight"};
  Json rows = Json::array();
  for (const PipelineRow& row : run.pipeline->rows) {
    Json passes = Json::array();
    for (const DrawnPass& pass : row.passes) {
      passes.push_back({kKinds[static_cast<std::size_t>(pass.kind)], pass.first_unit,
                        pass.last_unit, pass.microbatch, pass.begin_ns,
                        pass.end_ns - pass.begin_ns});
    }
    rows.push_back({{"rank", row.rank},
                    {"passes", std::move(passes)},
                    {"span", row.span_ns},
                    {"compute", row.compute_ns},
                    {"bubble", row.bubble_ns()}});
  }
  return {{"rows", std::move(rows)}, {"one_clock", run.pipeline->one_clock}};
}

Json category_colors_json() {
  Json colors = Json::object();
  for (std::size_t c = 0; c < kCategoryCount; ++c) {
    const auto category = static_cast<Category>(c);
    colors[std::string(category_name(category))] = palette::category_color(category);
  }
  return colors;
}

Json page_data(const RunDirectory& run) {
  Json evaluations = {{"step", Json::array()}, {"loss", Json::array()}};
  for (const EvaluationFacts& evaluation : run.evaluations) {
    evaluations["step"].push_back(evaluation.step);
    evaluations["loss"].push_back(finite_or_null(evaluation.loss));
  }
  Json memory = Json::array();
  for (const Tier tier : kTiers) {
    const auto i = static_cast<std::size_t>(tier);
    memory.push_back({{"tier", tier_name(tier)},
                      {"budget", or_null(run.budget_bytes[i])},
                      {"plan_peak", or_null(run.plan.quantities.peak_bytes[i])},
                      {"measured_peak", or_null(run.measured_peak_bytes[i])},
                      {"plan", memory_json(run.plan_trace, tier)},
                      {"run", memory_json(run.run_trace, tier)}});
  }
  // The last part of a path such as "runs/demo/" is empty.
  const auto name =
      run.path.filename().empty() ? run.path.parent_path().filename() : run.path.filename();
  return {{"name", name.string()},
          {"config", run.config_text},
          {"parameters", or_null(run.plan.parameters)},
          {"state_bytes", or_null(run.plan.state_bytes)},
          {"bound_by", run.plan.bound_by},
          {"weights_hash", or_null(run.weights_hash)},
          {"steps", curves_json(run.steps)},
          {"redone", redone_json(run.steps)},
          {"evaluations", evaluations},
          {"comparison", comparison_json(run)},
          {"memory", memory},
          {"plan", lanes_json(run.plan_trace, lanes_of(run.plan_trace))},
          {"run", lanes_json(run.run_trace, lanes_of(run.run_trace))},
          {"traced_step", traced_step_json(run)},
          {"ranks", ranks_json(run.ranks)},
          {"pipeline", pipeline_json(run)},
          {"category_colors", category_colors_json()}};
}

}  // namespace

std::string render_html_report(const std::filesystem::path& run_dir) {
  // Text from files must not end the script element, so '<' is written as an escape. Bytes that are
  // not UTF-8 (in a comment of the configuration, in the directory's name) become U+FFFD.
  const std::string data = lenient_json_text(page_data(load_run_directory(run_dir)));
  std::string page;
  page.reserve(kPageHead.size() + data.size() + kPageTail.size());
  page += kPageHead;
  for (const char c : data) {
    if (c == '<') {
      page += "\\u003c";
    } else {
      page += c;
    }
  }
  page += kPageTail;
  return page;
}

}  // namespace sluice::report
