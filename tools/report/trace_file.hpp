// A trace file of a run directory, with every bound checked. base/trace.hpp describes the format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/trace.hpp"

namespace sluice::report {

// Ids of spans and counters are below names.size(). Times are shifted so that the earliest is 0.
// Spans are sorted by begin, and by end in descending order; counters are sorted by time.
struct TraceFile {
  std::vector<std::string> names;
  std::vector<TraceSpan> spans;
  std::vector<TraceCounter> counters;
  std::int64_t end_ns = 0;    // the latest time of a span or a counter
  std::int64_t start_ns = 0;  // time 0 on the recorder's clock, which the ranks of a machine share
};

// Throws InputError with the file's name.
TraceFile load_trace(const std::filesystem::path& file);

}  // namespace sluice::report
