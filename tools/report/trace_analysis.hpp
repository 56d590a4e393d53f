// The lanes and the memory of a trace, prepared for drawing. Pure functions of a TraceFile.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/memory_kinds.hpp"
#include "tools/report/trace_file.hpp"

namespace sluice::report {

// The spans of one lane, on rows within which none overlap.
struct LaneView {
  TraceId track;
  std::vector<std::uint32_t> spans;  // indices into TraceFile::spans, by begin
  std::vector<std::uint32_t> rows;   // the row of each, same order
  std::uint32_t row_count = 0;
  std::int64_t busy_ns = 0;  // time covered by at least one span
};

// Lanes in the order of the engine's Lane enumeration. Tracks that it does not have follow, in the
// order of their first use.
std::vector<LaneView> lanes_of(const TraceFile& trace);

// Bytes of one tier over time, by category. A value holds until the next sample.
struct MemorySeries {
  std::vector<Category> categories;  // those that hold a byte at any time
  std::vector<std::int64_t> time_ns;
  std::vector<std::vector<double>> bytes;  // [category][sample]
  double peak_bytes = 0;
};

// Reads the counters named "tier/category". Keeps at most max_samples + 1 samples, among them the
// peak.
MemorySeries memory_of(const TraceFile& trace, Tier tier, std::size_t max_samples);

// The number of distinct steps in the trace; at least 1.
std::size_t step_count(const TraceFile& trace);

}  // namespace sluice::report
