// `sluice bench plan`: the time to plan, and how near the plans are to their bounds.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace sluice::bench {

struct PlanBenchOptions {
  int shapes = 100;  // random ones; 0: none
};

// Plans well-known cases, then random models of up to 100 units and 128 micro-batches with random
// budgets, for a machine that is described in the source. Runs nothing.
// {"event":"bench","name":"plan","figures":{"cases":[{case, outcome ("fits" | "refused"), cpu_s,
//   and of a plan step_s, bound_s, tokens_per_s}], "shapes":{count, fits, median_cpu_s, worst_cpu_s,
//   median_gap (step / bound - 1)}}}
nlohmann::json run_plan_bench(const PlanBenchOptions& options);

}  // namespace sluice::bench
