#include "tools/report/run_directory.hpp"

#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::report {

namespace {

using Json = nlohmann::json;
using Path = std::filesystem::path;

// A trace is about 45 bytes of text a span: room for 1.4 million. The parsed tree takes about four
// times the text, sixteen times for a file made to.
constexpr std::uint64_t kMaxTraceBytes = 64 * kMiB;
// Ours are three deep.
constexpr int kMaxJsonDepth = 16;
// 200 to 400 bytes a step: more than 500,000 steps.
constexpr std::uint64_t kMaxEventsBytes = 256 * kMiB;
constexpr std::uint64_t kMaxSmallBytes = 1 * kMiB;
// Differences of two times must not overflow.
constexpr std::int64_t kMaxTimeNs = std::int64_t{1} << 61;

[[noreturn]] void refuse(const Path& file, const std::string& what) {
  throw InputError(file.string() + ": " + what);
}

// Reads a whole regular file (not a FIFO that would block) of at most max_bytes.
std::string read_file(const Path& file, std::uint64_t max_bytes) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (!std::filesystem::exists(status)) {
    refuse(file, "no such file; a run directory is the log.dir of a finished `sluice train`");
  }
  if (!std::filesystem::is_regular_file(status)) refuse(file, "not a regular file");
  std::ifstream in(file, std::ios::binary);
  if (!in) refuse(file, "cannot be opened for reading");
  const std::uint64_t bytes = std::filesystem::file_size(file, error);
  if (error) refuse(file, "its size cannot be read: " + error.message());
  if (bytes > max_bytes) {
    refuse(file, format_bytes(bytes) + ", larger than the limit of " + format_bytes(max_bytes));
  }
  std::string text(bytes, '\0');
  in.read(text.data(), static_cast<std::streamsize>(bytes));
  text.resize(static_cast<std::size_t>(in.gcount()));
  return text;
}

Json parse_json(const Path& file, std::string_view text, const std::string& where) {
  const auto bound_depth = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxJsonDepth) refuse(file, where + "nested too deep");
    return true;
  };
  try {
    return Json::parse(text, bound_depth);
  } catch (const Json::parse_error& error) {
    refuse(file, where + "not JSON at byte " + std::to_string(error.byte));
  } catch (const Json::exception&) {
    refuse(file, where + "a number out of range");
  }
}

const Json* find(const Json& object, const char* key) {
  const auto entry = object.find(key);
  return entry == object.end() || entry->is_null() ? nullptr : &*entry;
}

// A byte count; whole numbers may come as 1.5e9.
std::optional<std::uint64_t> count_of(const Path& file, const Json& object, const char* key) {
  const Json* value = find(object, key);
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned()) return value->get<std::uint64_t>();
  const double number = value->is_number() ? value->get<double>() : -1.0;
  if (!(number >= 0.0 && number < 0x1p63)) {
    refuse(file, std::string("'") + key + "' must be a count, 0 or more");
  }
  return static_cast<std::uint64_t>(number);
}

// NaN when absent or null (JSON has no NaN: a loss that is none is written as null).
double number_of(const Path& file, const Json& object, const char* key) {
  const Json* value = find(object, key);
  if (value == nullptr) return std::numeric_limits<double>::quiet_NaN();
  if (!value->is_number()) refuse(file, std::string("'") + key + "' must be a number");
  return value->get<double>();
}

std::string text_of(const Path& file, const Json& object, const char* key) {
  const Json* value = find(object, key);
  if (value == nullptr) return {};
  if (!value->is_string()) refuse(file, std::string("'") + key + "' must be a string");
  return value->get<std::string>();
}

const Json& object_of(const Path& file, const Json& object, const char* key) {
  static const Json kEmpty = Json::object();
  const Json* value = find(object, key);
  if (value == nullptr) return kEmpty;
  if (!value->is_object()) refuse(file, std::string("'") + key + "' must be an object");
  return *value;
}

std::array<std::optional<std::uint64_t>, kTierCount> tier_bytes(const Path& file,
                                                                const Json& event) {
  const Json& object = object_of(file, event, "peak_bytes");
  std::array<std::optional<std::uint64_t>, kTierCount> bytes;
  for (const Tier tier : kTiers) {
    bytes[static_cast<std::size_t>(tier)] = count_of(file, object, tier_name(tier).data());
  }
  return bytes;
}

std::array<std::optional<std::uint64_t>, kLinkCount> moved_bytes(const Path& file,
                                                                 const Json& event) {
  const Json& object = object_of(file, event, "bytes_moved");
  std::array<std::optional<std::uint64_t>, kLinkCount> bytes;
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
      budget = parse_bytes(text->get());  // "auto" is no count: no budget line
    } else if (const auto* number = value.as_integer(); number != nullptr && number->get() >= 0) {
      budget = static_cast<std::uint64_t>(number->get());
    }
  }
}

void load_plan(const Path& file, PlanFacts& plan) {
  const Json event = parse_json(file, read_file(file, kMaxSmallBytes), "");
  if (!event.is_object()) refuse(file, "must hold the plan event, one JSON object");
  plan.quantities.peak_bytes = tier_bytes(file, event);
  plan.quantities.bytes_moved = moved_bytes(file, event);
  const double step_time_s = number_of(file, event, "step_time_s");
  if (std::isfinite(step_time_s)) plan.quantities.step_time_s = step_time_s;
  plan.bound_by = text_of(file, event, "bound_by");
  plan.parameters = count_of(file, event, "parameters");
  plan.state_bytes = count_of(file, event, "state_bytes");
}

void take_event(const Path& file, const Json& event, RunDirectory& run) {
  const std::string kind = text_of(file, event, "event");
  if (kind == "done") {
    run.run_peak_bytes = tier_bytes(file, event);
    run.weights_hash = text_of(file, event, "weights_hash");
  } else if (kind == "step" || kind == "eval" || kind == "evaluation") {
    const auto step = count_of(file, event, "step");
    if (!step) refuse(file, "a " + kind + " event without 'step'");
    const double loss = number_of(file, event, "loss");
    // A run that went on from an older checkpoint tells these steps again: the later telling holds.
    const auto drop_retold = [&step](auto& earlier) {
      while (!earlier.empty() && earlier.back().step >= *step) earlier.pop_back();
    };
    if (kind != "step") {
      drop_retold(run.evaluations);
      run.evaluations.push_back({*step, loss});
      return;
    }
    drop_retold(run.steps);
    run.steps.push_back({*step, loss, number_of(file, event, "grad_norm"),
                         number_of(file, event, "lr"), number_of(file, event, "tokens_per_s"),
                         number_of(file, event, "step_time_s"),
                         number_of(file, event, "stalled_fraction"),
                         number_of(file, event, "redo_time_s"), moved_bytes(file, event)});
  }
}

void load_events(const Path& file, RunDirectory& run) {
  const std::string text = read_file(file, kMaxEventsBytes);
  std::size_t line_number = 0;
  // A last line without its newline is where a killed run stopped writing: no event.
  for (std::size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    ++line_number;
    if (end == begin) continue;
    const std::string where = "line " + std::to_string(line_number) + ": ";
    const Json event = parse_json(file, std::string_view(text).substr(begin, end - begin), where);
    if (!event.is_object()) refuse(file, where + "not a JSON object");
    take_event(file, event, run);
  }
}

// One row of "spans" or "counters": an array of a known width.
class Row {
 public:
  Row(const Path& file, const Json& rows, std::size_t index, std::size_t width, const char* what)
      : file_(file), values_(rows[index]), name_(std::string(what) + ' ' + std::to_string(index)) {
    if (!values_.is_array() || values_.size() != width) {
      refuse(file_, name_ + " must be an array of " + std::to_string(width) + " values");
    }
  }

  // An integer within [least, most].
  std::int64_t integer(std::size_t column, std::int64_t least, std::int64_t most) const {
    const Json& value = values_[column];
    const bool fits = value.is_number_integer() &&
                      !(value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX);
    const std::int64_t number = fits ? value.get<std::int64_t>() : 0;
    if (!fits || number < least || number > most) {
      refuse(file_, name_ + ": value " + std::to_string(column) + " must be an integer from " +
                        std::to_string(least) + " to " + std::to_string(most));
    }
    return number;
  }

  // Empty for null: the recorder writes NaN and infinity so.
  std::optional<double> number(std::size_t column) const {
    const Json& value = values_[column];
    if (value.is_null()) return std::nullopt;
    if (!value.is_number()) {
      refuse(file_, name_ + ": value " + std::to_string(column) + " must be a number");
    }
    return value.get<double>();
  }

 private:
  const Path& file_;
  const Json& values_;
  std::string name_;
};

const Json& array_of(const Path& file, const Json& root, const char* key) {
  const Json* value = root.is_object() ? find(root, key) : nullptr;
  if (value == nullptr || !value->is_array()) {
    refuse(file, std::string("must be an object with the array '") + key + "'");
  }
  return *value;
}

// Times begin at 0, in order.
void normalise(TraceFile& trace) {
  std::int64_t first = kMaxTimeNs;
  for (const TraceSpan& span : trace.spans) first = std::min(first, span.begin_ns);
  for (const TraceCounter& sample : trace.counters) first = std::min(first, sample.time_ns);
  for (TraceSpan& span : trace.spans) {
    span.begin_ns -= first;
    span.end_ns -= first;
    trace.end_ns = std::max(trace.end_ns, span.end_ns);
  }
  for (TraceCounter& sample : trace.counters) {
    sample.time_ns -= first;
    trace.end_ns = std::max(trace.end_ns, sample.time_ns);
  }
  std::stable_sort(
      trace.spans.begin(), trace.spans.end(), [](const TraceSpan& a, const TraceSpan& b) {
        return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
      });
  std::stable_sort(
      trace.counters.begin(), trace.counters.end(),
      [](const TraceCounter& a, const TraceCounter& b) { return a.time_ns < b.time_ns; });
}

TraceFile load_trace(const Path& file) {
  const Json root = parse_json(file, read_file(file, kMaxTraceBytes), "");
  TraceFile trace;
  for (const Json& name : array_of(file, root, "names")) {
    if (!name.is_string()) refuse(file, "'names' must be strings");
    trace.names.push_back(name.get<std::string>());
  }
  const std::int64_t last_name = static_cast<std::int64_t>(trace.names.size()) - 1;
  const Json& spans = array_of(file, root, "spans");
  trace.spans.reserve(spans.size());
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const Row row(file, spans, i, 8, "span");
    TraceSpan span{};
    span.track = static_cast<TraceId>(row.integer(0, 0, last_name));
    span.name = static_cast<TraceId>(row.integer(1, 0, last_name));
    span.begin_ns = row.integer(2, -kMaxTimeNs, kMaxTimeNs);
    span.end_ns = row.integer(3, span.begin_ns, kMaxTimeNs);
    span.unit = static_cast<std::int32_t>(row.integer(4, -1, INT32_MAX));
    span.microbatch = static_cast<std::int32_t>(row.integer(5, -1, INT32_MAX));
    span.bytes = static_cast<std::uint64_t>(row.integer(6, 0, INT64_MAX));
    span.step = static_cast<std::uint32_t>(row.integer(7, 0, UINT32_MAX));
    trace.spans.push_back(span);
  }
  const Json& counters = array_of(file, root, "counters");
  for (std::size_t i = 0; i < counters.size(); ++i) {
    const Row row(file, counters, i, 3, "counter");
    const auto name = static_cast<TraceId>(row.integer(0, 0, last_name));
    const std::int64_t time_ns = row.integer(1, -kMaxTimeNs, kMaxTimeNs);
    if (const auto value = row.number(2)) trace.counters.push_back({name, time_ns, *value});
  }
  normalise(trace);
  return trace;
}

}  // namespace

RunDirectory load_run_directory(const Path& run_dir) {
  std::error_code error;
  if (!std::filesystem::is_directory(run_dir, error)) {
    refuse(run_dir, "no such directory; give the log.dir of a run");
  }
  RunDirectory run;
  run.path = run_dir;
  load_config(run_dir / "config.toml", run);
  load_plan(run_dir / "plan.json", run.plan);
  load_events(run_dir / "events.jsonl", run);
  run.plan_trace = load_trace(run_dir / "plan_trace.json");
  run.run_trace = load_trace(run_dir / "trace.json");
  return run;
}

}  // namespace sluice::report
