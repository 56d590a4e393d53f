// The trace recorder: spans on lanes and counter samples, with interned names and a given clock.
//
// The executor and the simulator use one format, so that plan and run compare line by line.
// Thread-safe; `span` and `counter` take one lock and append to a vector reserved in advance.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mutex.hpp"

namespace sluice {

using TraceId = std::uint32_t;

struct TraceSpan {
  TraceId track;  // a lane
  TraceId name;   // an op
  std::int64_t begin_ns;
  std::int64_t end_ns;
  std::int32_t unit;        // -1: none
  std::int32_t microbatch;  // -1: none
  std::uint64_t bytes;
  std::uint32_t step;
};

struct TraceCounter {
  TraceId name;  // "device/weight", ...
  std::int64_t time_ns;
  double value;
};

class TraceRecorder {
 public:
  // now_ns: steady nanoseconds; the simulator injects its own.
  explicit TraceRecorder(std::function<std::int64_t()> now_ns = {});

  TraceId intern(std::string_view name);
  // The result is valid for the life of the recorder.
  std::string_view name_of(TraceId id) const;
  std::int64_t now_ns() const { return now_ns_(); }

  void span(const TraceSpan& span);
  void counter(TraceId name, std::int64_t time_ns, double value);
  void clear();

  std::vector<TraceSpan> spans() const;
  std::vector<TraceCounter> counters() const;

  // The file format of a run directory: one JSON object. Ids index "names". Times are nanoseconds
  // of the recorder's clock. unit and microbatch are -1 if there is none; value is null if it is
  // not finite:
  //   {"names":[…],
  //    "spans":[[track,name,begin_ns,end_ns,unit,microbatch,bytes,step],…],
  //    "counters":[[name,time_ns,value],…]}
  std::string to_json() const;

 private:
  std::function<std::int64_t()> now_ns_;
  mutable Mutex mutex_;
  std::deque<std::string> names_ SLUICE_GUARDED_BY(mutex_);  // addresses are stable
  std::unordered_map<std::string, TraceId> ids_ SLUICE_GUARDED_BY(mutex_);
  std::vector<TraceSpan> spans_ SLUICE_GUARDED_BY(mutex_);
  std::vector<TraceCounter> counters_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice
