// What a trace says about lanes, waits and memory. Pure functions of a TraceFile.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/memory_kinds.hpp"
#include "tools/report/run_directory.hpp"

namespace sluice::report {

// The spans of one lane, parted into rows so that within a row none overlap.
struct LaneView {
  TraceId track;
  std::vector<std::uint32_t> spans;  // indices into TraceFile::spans, by begin
  std::vector<std::uint32_t> rows;   // the row of each, same order
  std::uint32_t row_count = 0;
  std::int64_t busy_ns = 0;  // time covered by at least one span
};

// Lanes in the order of the engine's Lane enumeration; tracks it does not know follow by first use.
std::vector<LaneView> lanes_of(const TraceFile& trace);

// A time in which the compute lane ran nothing although the trace went on.
struct Stall {
  std::int64_t begin_ns;
  std::int64_t end_ns;
  // The span of another lane that ended last before the wait did, and inside it: what was waited
  // for, as far as a trace can tell. Empty: no other lane finished anything in that time.
  std::optional<std::uint32_t> waited_for;
  // The compute span that ended the wait. Empty: the end of the trace.
  std::optional<std::uint32_t> next;
};

// By begin; waits under a microsecond are left out (the cost of a queue, not of a link).
std::vector<Stall> stalls_of(const TraceFile& trace);

// Bytes of one tier over time, by category. Between samples the last value holds.
struct MemorySeries {
  std::vector<Category> categories;  // that ever held a byte
  std::vector<std::int64_t> time_ns;
  std::vector<std::vector<double>> bytes;  // [category][sample]
  double peak_bytes = 0;
};

// From counters named "tier/category". At most max_samples, which keep the greatest total of their
// interval, so that thinning never hides a peak.
MemorySeries memory_of(const TraceFile& trace, Tier tier, std::size_t max_samples);

// Distinct steps in the trace; at least 1.
std::size_t step_count(const TraceFile& trace);

}  // namespace sluice::report
