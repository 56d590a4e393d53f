// The trace of a host program: what sessions do, and the program's own spans, counters and marks.
// The format of files is that of a run directory's trace.json (base/trace.hpp).
//
// It holds the last events alone, so a program may record for days. Names are kept with each event,
// because a program may make up new ones for ever. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "base/mutex.hpp"
#include "base/trace.hpp"

namespace sluice::host {

class TraceLog {
 public:
  // Times are nanoseconds of CLOCK_MONOTONIC below this, so that no difference overflows.
  static constexpr std::int64_t kMostTimeNs = std::int64_t{1} << 61;
  // A name is cut there.
  static constexpr std::size_t kMostNameBytes = 200;

  // Drops all events; the last `most_events` are kept from now on. 0: nothing is recorded.
  void start(std::uint64_t most_events);
  bool is_recording() const;

  // None records anything before start(). The first two throw InputError for times that are out of
  // range, and for a span that ends before it begins.
  void add_span(std::string_view track, std::string_view name, std::int64_t begin_ns,
                std::int64_t end_ns);
  void add_counter(std::string_view name, std::int64_t time_ns, double value);
  // A span without length on the track "program", now.
  void mark(std::string_view name);
  void append(const TraceRecorder& recorded);

  std::string to_json() const;

 private:
  struct Event {
    bool is_counter = false;
    std::string track, name;
    TraceSpan span{};  // without its names; of a counter begin_ns alone
    double value = 0;
  };
  void push(Event event) SLUICE_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::uint64_t most_ SLUICE_GUARDED_BY(mutex_) = 0;
  std::deque<Event> events_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::host
