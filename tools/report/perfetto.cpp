#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "base/json_text.hpp"
#include "tools/report/report.hpp"
#include "tools/report/run_directory.hpp"
#include "tools/report/trace_analysis.hpp"

namespace sluice::report {

namespace {

// Names come from a file: quoted and escaped.
std::string json_string(const std::string& text) {
  return json_text(nlohmann::json(text));
}

// Chrome JSON counts in microseconds; three decimals keep every nanosecond, so slices that touch
// never come to overlap by rounding.
std::string microseconds(std::int64_t ns) {
  char text[40];
  std::snprintf(text, sizeof text, "%lld.%03lld", static_cast<long long>(ns / 1000),
                static_cast<long long>(ns % 1000));
  return text;
}

class ChromeWriter {
 public:
  // Each `fields` is the inside of one event object.
  void event(const std::string& fields) {
    out_ += first_ ? "\n{" : ",\n{";
    out_ += fields;
    out_ += '}';
    first_ = false;
  }
  void metadata(const char* kind, int pid, std::size_t tid, const std::string& arguments) {
    event(std::string(R"("ph":"M","name":")") + kind + R"(","pid":)" + std::to_string(pid) +
          R"(,"tid":)" + std::to_string(tid) + R"(,"args":{)" + arguments + "}");
  }
  std::string finish() && { return std::move(out_) + "\n]}\n"; }

 private:
  std::string out_ = R"({"displayTimeUnit":"ms","traceEvents":[)";
  bool first_ = true;
};

std::string slice(const TraceFile& trace, const TraceSpan& span, int pid, std::size_t tid) {
  std::string fields =
      R"("ph":"X","name":)" + json_string(trace.names[span.name]) + R"(,"cat":)" +
      json_string(trace.names[span.track]) + R"(,"pid":)" + std::to_string(pid) + R"(,"tid":)" +
      std::to_string(tid) + R"(,"ts":)" + microseconds(span.begin_ns) + R"(,"dur":)" +
      microseconds(span.end_ns - span.begin_ns) + R"(,"args":{"step":)" + std::to_string(span.step);
  if (span.unit >= 0) fields += R"(,"unit":)" + std::to_string(span.unit);
  if (span.microbatch >= 0) fields += R"(,"microbatch":)" + std::to_string(span.microbatch);
  if (span.bytes > 0) fields += R"(,"bytes":)" + std::to_string(span.bytes);
  return fields + "}";
}

void write_process(ChromeWriter& out, const TraceFile& trace, int pid, const char* name) {
  out.metadata("process_name", pid, 0, std::string(R"("name":")") + name + "\"");
  out.metadata("process_sort_index", pid, 0, R"("sort_index":)" + std::to_string(pid));
  std::size_t first_tid = 1;
  for (const LaneView& lane : lanes_of(trace)) {
    for (std::size_t row = 0; row < lane.row_count; ++row) {
      std::string thread = trace.names[lane.track];
      if (row > 0) thread += " (" + std::to_string(row + 1) + ")";
      out.metadata("thread_name", pid, first_tid + row, R"("name":)" + json_string(thread));
      out.metadata("thread_sort_index", pid, first_tid + row,
                   R"("sort_index":)" + std::to_string(first_tid + row));
    }
    for (std::size_t i = 0; i < lane.spans.size(); ++i) {
      out.event(slice(trace, trace.spans[lane.spans[i]], pid, first_tid + lane.rows[i]));
    }
    first_tid += lane.row_count;
  }
  for (const TraceCounter& sample : trace.counters) {
    out.event(R"("ph":"C","name":)" + json_string(trace.names[sample.name]) + R"(,"pid":)" +
              std::to_string(pid) + R"(,"ts":)" + microseconds(sample.time_ns) +
              R"(,"args":{"value":)" + json_text(nlohmann::json(sample.value)) + "}");
  }
}

}  // namespace

std::string render_perfetto(const std::filesystem::path& path) {
  ChromeWriter out;
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) {
    write_process(out, load_trace(path), 1, "trace");
    return std::move(out).finish();
  }
  const RunDirectory run = load_run_directory(path);
  write_process(out, run.plan_trace, 1, "plan (simulated)");
  write_process(out, run.run_trace, 2, "run");
  return std::move(out).finish();
}

}  // namespace sluice::report
