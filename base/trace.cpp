#include "base/trace.hpp"

#include <charconv>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/error.hpp"

namespace sluice {

namespace {

// A step of a model with a hundred units has some thousand spans. Growth beyond this is amortised.
constexpr std::size_t kReservedSpans = 1 << 14;
constexpr std::size_t kReservedCounters = 1 << 12;

void append_json_string(std::string& out, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  out += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20) {
      out += "\\u00";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  out += '"';
}

template <typename Number>
void append_number(std::string& out, Number value) {
  char text[32];
  const auto result = std::to_chars(text, text + sizeof text, value);
  out.append(text, result.ptr);
}

// Appends the shortest text that reads back to the same double. JSON has no NaN or infinity;
// these become null.
void append_double(std::string& out, double value) {
  if (std::isfinite(value)) {
    append_number(out, value);
  } else {
    out += "null";
  }
}

void append_span(std::string& out, const TraceSpan& span) {
  out += '[';
  append_number(out, span.track);
  out += ',';
  append_number(out, span.name);
  out += ',';
  append_number(out, span.begin_ns);
  out += ',';
  append_number(out, span.end_ns);
  out += ',';
  append_number(out, span.unit);
  out += ',';
  append_number(out, span.microbatch);
  out += ',';
  append_number(out, span.bytes);
  out += ',';
  append_number(out, span.step);
  out += ']';
}

std::int64_t steady_now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

TraceRecorder::TraceRecorder(std::function<std::int64_t()> now_ns)
    : now_ns_(now_ns ? std::move(now_ns) : std::function<std::int64_t()>(steady_now_ns)) {
  spans_.reserve(kReservedSpans);
  counters_.reserve(kReservedCounters);
}

TraceId TraceRecorder::intern(std::string_view name) {
  const MutexLock lock(mutex_);
  const auto [entry, inserted] =
      ids_.try_emplace(std::string(name), static_cast<TraceId>(names_.size()));
  if (inserted) names_.emplace_back(name);
  return entry->second;
}

std::string_view TraceRecorder::name_of(TraceId id) const {
  const MutexLock lock(mutex_);
  SLUICE_CHECK(id < names_.size());
  return names_[id];
}

void TraceRecorder::span(const TraceSpan& span) {
  const MutexLock lock(mutex_);
  spans_.push_back(span);
}

void TraceRecorder::counter(TraceId name, std::int64_t time_ns, double value) {
  const MutexLock lock(mutex_);
  counters_.push_back({name, time_ns, value});
}

void TraceRecorder::clear() {
  const MutexLock lock(mutex_);
  spans_.clear();
  counters_.clear();
}

std::vector<TraceSpan> TraceRecorder::spans() const {
  const MutexLock lock(mutex_);
  return spans_;
}

std::vector<TraceCounter> TraceRecorder::counters() const {
  const MutexLock lock(mutex_);
  return counters_;
}

std::string TraceRecorder::to_json() const {
  const MutexLock lock(mutex_);
  std::string out;
  out.reserve(64 + 32 * names_.size() + 72 * spans_.size() + 40 * counters_.size());
  out += "{\"names\":[";
  for (std::size_t i = 0; i < names_.size(); ++i) {
    if (i > 0) out += ',';
    append_json_string(out, names_[i]);
  }
  out += "],\n\"spans\":[";
  for (std::size_t i = 0; i < spans_.size(); ++i) {
    out += i > 0 ? ",\n" : "\n";
    append_span(out, spans_[i]);
  }
  out += "],\n\"counters\":[";
  for (std::size_t i = 0; i < counters_.size(); ++i) {
    out += i > 0 ? ",\n[" : "\n[";
    append_number(out, counters_[i].name);
    out += ',';
    append_number(out, counters_[i].time_ns);
    out += ',';
    append_double(out, counters_[i].value);
    out += ']';
  }
  out += "]}\n";
  return out;
}

}  // namespace sluice
