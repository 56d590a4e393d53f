#include "tools/report/trace_file.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/units.hpp"
#include "tools/report/untrusted_json.hpp"

namespace sluice::report {

namespace {

using Json = nlohmann::json;
using Path = std::filesystem::path;

// A span takes about 45 bytes of text, so this is room for 1.4 million. The parsed tree takes about
// four times the text, and sixteen times for a file that is made to.
constexpr std::uint64_t kMaxTraceBytes = 64 * kMiB;
// The difference of two times must not overflow.
constexpr std::int64_t kMaxTimeNs = std::int64_t{1} << 61;

// One row of "spans" or "counters", which is an array of a known width.
class Row {
 public:
  Row(const Path& file, const Json& rows, std::size_t index, std::size_t width, const char* kind)
      : file_(file), values_(rows[index]), name_(std::string(kind) + ' ' + std::to_string(index)) {
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

  // Empty for null, which the recorder writes for NaN and infinity.
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

// Shifts times so that the earliest is 0, and sorts spans and counters.
void normalise(TraceFile& trace) {
  std::int64_t first = kMaxTimeNs;
  for (const TraceSpan& span : trace.spans) first = std::min(first, span.begin_ns);
  for (const TraceCounter& sample : trace.counters) first = std::min(first, sample.time_ns);
  trace.start_ns = first;
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

}  // namespace

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

}  // namespace sluice::report
