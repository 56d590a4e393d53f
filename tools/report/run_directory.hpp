// A run directory, read into plain data with every bound checked.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/memory_kinds.hpp"
#include "tools/report/pipeline_view.hpp"
#include "tools/report/trace_file.hpp"

namespace sluice::report {

inline constexpr std::size_t kLinkCount = 4;
// The names of the links in JSON events.
inline constexpr std::array<const char*, kLinkCount> kLinkNames{"upload", "download",
                                                                "storage_read", "storage_write"};

using TierCounts = std::array<std::optional<std::uint64_t>, kTierCount>;
using LinkCounts = std::array<std::optional<std::uint64_t>, kLinkCount>;

// The plan's figures for one steady step. A figure that the file lacks is absent.
struct Quantities {
  TierCounts peak_bytes;
  LinkCounts bytes_moved;
  std::optional<double> step_time_s;
};

struct PlanFacts {
  Quantities quantities;
  std::string bound_by;
  std::optional<std::uint64_t> parameters;
  std::optional<std::uint64_t> state_bytes;
  std::uint64_t ranks = 1;
  bool has_stages = false;  // the ranks are those of pipelines
};

// A field is NaN if the event has no finite number for it.
struct StepFacts {
  std::uint64_t step;
  double loss, grad_norm, lr, tokens_per_s, step_time_s, stalled_fraction;
  double redo_time_s;  // 0 if a speculative update stood; NaN if the update was not speculative
  bool commits;        // the step also made the state durable while it computed
  LinkCounts bytes_moved;
};

// The step that trace.json is of, and the engine's account of its compute lane: every moment in
// which the lane stood still has one cause (engine/runtime/stall_causes.hpp).
struct TracedStep {
  std::uint64_t step = 0;
  bool commits = false;
  double compute_s = 0;
  double stalled_s = 0;
  std::vector<std::pair<std::string, double>> by_cause_s;  // the longest first
};

// The traced step of one rank of several.
struct RankFacts {
  std::uint64_t rank = 0;
  TracedStep traced_step;
};

struct EvaluationFacts {
  std::uint64_t step;
  double loss;
};

struct RunDirectory {
  std::filesystem::path path;
  std::string config_text;
  TierCounts budget_bytes;
  PlanFacts plan;
  std::vector<StepFacts> steps;
  std::vector<EvaluationFacts> evaluations;
  std::optional<std::string> weights_hash;  // absent if the run did not finish
  // As the device and the storage engine counted: at the end of the run, or else after its traced
  // step. Absent if the run did not reach that.
  TierCounts measured_peak_bytes;
  std::optional<TracedStep> traced_step;  // the last, if a run was resumed
  std::vector<RankFacts> ranks;           // those with a traced step; empty for a run of one rank
  TraceFile plan_trace;
  TraceFile run_trace;  // empty if no step was traced
  // A pipeline's traced step: the passes of each rank, if all have a trace.
  struct PipelineTrace {
    std::vector<PipelineRow> rows;
    bool one_clock = true;  // false: each row begins at 0
  };
  std::optional<PipelineTrace> pipeline;
};

// Throws InputError naming the file.
RunDirectory load_run_directory(const std::filesystem::path& run_dir);

}  // namespace sluice::report
