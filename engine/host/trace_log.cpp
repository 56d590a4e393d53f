#include "engine/host/trace_log.hpp"

#include <chrono>
#include <utility>

#include "base/error.hpp"

namespace sluice::host {
namespace {

// Whole UTF-8 characters of at most kMostNameBytes bytes: JSON takes no other.
std::string cleaned(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size() && out.size() < TraceLog::kMostNameBytes;) {
    const auto first = static_cast<unsigned char>(text[at]);
    const std::size_t length = first < 0x80             ? 1
                               : (first & 0xe0) == 0xc0 ? 2
                               : (first & 0xf0) == 0xe0 ? 3
                               : (first & 0xf8) == 0xf0 ? 4
                                                        : 0;
    bool whole = length > 0 && at + length <= text.size();
    for (std::size_t i = 1; whole && i < length; ++i) {
      whole = (static_cast<unsigned char>(text[at + i]) & 0xc0) == 0x80;
    }
    out += whole ? text.substr(at, length) : std::string_view("?");
    at += whole ? length : 1;
  }
  return out;
}

void check_time(std::int64_t time_ns, const char* name) {
  if (time_ns >= 0 && time_ns <= TraceLog::kMostTimeNs) return;
  throw InputError(std::string(name) + " is " + std::to_string(time_ns) +
                   ", which is not a time of CLOCK_MONOTONIC in nanoseconds");
}

}  // namespace

void TraceLog::start(std::uint64_t most_events) {
  const MutexLock lock(mutex_);
  most_ = most_events;
  events_.clear();
}

bool TraceLog::is_recording() const {
  const MutexLock lock(mutex_);
  return most_ > 0;
}

void TraceLog::push(Event event) {
  if (most_ == 0) return;
  if (events_.size() == most_) events_.pop_front();
  events_.push_back(std::move(event));
}

void TraceLog::add_span(std::string_view track, std::string_view name, std::int64_t begin_ns,
                        std::int64_t end_ns) {
  check_time(begin_ns, "begin_ns");
  check_time(end_ns, "end_ns");
  if (end_ns < begin_ns) throw InputError("the span ends before it begins");
  Event event{.track = cleaned(track), .name = cleaned(name)};
  event.span.begin_ns = begin_ns;
  event.span.end_ns = end_ns;
  event.span.unit = event.span.microbatch = -1;
  const MutexLock lock(mutex_);
  push(std::move(event));
}

void TraceLog::add_counter(std::string_view name, std::int64_t time_ns, double value) {
  check_time(time_ns, "at_ns");
  Event event{.is_counter = true, .track = {}, .name = cleaned(name)};
  event.span.begin_ns = time_ns;
  event.value = value;
  const MutexLock lock(mutex_);
  push(std::move(event));
}

void TraceLog::mark(std::string_view name) {
  const std::int64_t now_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                                  std::chrono::steady_clock::now().time_since_epoch())
                                  .count();
  add_span("program", name, now_ns, now_ns);
}

void TraceLog::append(const TraceRecorder& recorded) {
  const MutexLock lock(mutex_);
  for (const TraceSpan& span : recorded.spans()) {
    push({.track = std::string(recorded.name_of(span.track)),
          .name = std::string(recorded.name_of(span.name)),
          .span = span});
  }
  for (const TraceCounter& counter : recorded.counters()) {
    Event event{
        .is_counter = true, .track = {}, .name = std::string(recorded.name_of(counter.name))};
    event.span.begin_ns = counter.time_ns;
    event.value = counter.value;
    push(std::move(event));
  }
}

std::string TraceLog::to_json() const {
  TraceRecorder written;
  const MutexLock lock(mutex_);
  for (const Event& event : events_) {
    const TraceId name = written.intern(event.name);
    if (event.is_counter) {
      written.counter(name, event.span.begin_ns, event.value);
      continue;
    }
    TraceSpan span = event.span;
    span.name = name;
    span.track = written.intern(event.track);
    written.span(span);
  }
  return written.to_json();
}

}  // namespace sluice::host
