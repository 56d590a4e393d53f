// A run directory read into plain data, every bound checked.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/memory_kinds.hpp"
#include "base/trace.hpp"

namespace sluice::report {

inline constexpr std::size_t kLinkCount = 4;
// As the JSON events name them.
inline constexpr std::array<const char*, kLinkCount> kLinkNames{"upload", "download",
                                                                "storage_read", "storage_write"};

// A trace file. Ids of spans and counters are below names.size(); times are shifted so that the
// earliest is 0; spans are sorted by (begin, end descending), counters by time.
struct TraceFile {
  std::vector<std::string> names;
  std::vector<TraceSpan> spans;
  std::vector<TraceCounter> counters;
  std::int64_t end_ns = 0;  // the latest time of a span or a counter
};

// What plan and run both state. Absent where the file does not say.
struct Quantities {
  std::array<std::optional<std::uint64_t>, kTierCount> peak_bytes;
  std::array<std::optional<std::uint64_t>, kLinkCount> bytes_moved;  // one steady step
  std::optional<double> step_time_s;
};

struct PlanFacts {
  Quantities quantities;
  std::string bound_by;
  std::optional<std::uint64_t> parameters;
  std::optional<std::uint64_t> state_bytes;
};

// NaN where the event has no finite number.
struct StepFacts {
  std::uint64_t step;
  double loss, grad_norm, lr, tokens_per_s, step_time_s, stalled_fraction;
  double redo_time_s;  // 0: a speculative update stood; NaN: it was not speculative
  std::array<std::optional<std::uint64_t>, kLinkCount> bytes_moved;
};

struct EvaluationFacts {
  std::uint64_t step;
  double loss;
};

struct RunDirectory {
  std::filesystem::path path;
  std::string config_text;
  std::array<std::optional<std::uint64_t>, kTierCount> budget_bytes;
  PlanFacts plan;
  std::vector<StepFacts> steps;
  std::vector<EvaluationFacts> evaluations;
  // Of the `done` event; a run that was cut short has none.
  std::optional<std::string> weights_hash;
  std::array<std::optional<std::uint64_t>, kTierCount> run_peak_bytes;
  TraceFile plan_trace;
  TraceFile run_trace;
};

// Throws InputError naming the file.
RunDirectory load_run_directory(const std::filesystem::path& run_dir);

}  // namespace sluice::report
