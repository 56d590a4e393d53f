// train.micro_batch = "auto": the samples of a step are divided into the micro-batches with the
// shortest simulated step that fits.
//
// A step's samples are the same for every division, but sums of other micro-batches are rounded at
// other places. So a division is chosen only if the configuration says so.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "engine/planner/plan.hpp"

namespace sluice::planner {

struct TriedSplit {
  std::int64_t micro_batch = 0;
  double bound_s = 0;            // the least time of a step
  std::optional<double> step_s;  // planned; nothing: it does not fit, or its bound is too long
};

struct SplitPlan {
  std::variant<Plan, Refusal> result;
  std::vector<TriedSplit> tried;  // in the order of their bounds; empty: nothing was left open
};

// Calls make_plan(), and for a configuration that leaves micro_batch and accumulate open once for
// each division that may be the fastest. Sets both to the chosen numbers. A refusal is that of
// micro-batches of one sample, which need least.
SplitPlan plan_split(config::Config& config, const model::Model& model,
                     const kernels::Kernels& kernels, const HardwareProfile& hardware,
                     const kernels::Kernels* host_kernels = nullptr,
                     WorldScope scope = WorldScope::kAllRanks);

}  // namespace sluice::planner
