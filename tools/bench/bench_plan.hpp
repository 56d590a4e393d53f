// `sluice bench plan`: the time to plan, and how good the plans are.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tools/bench/plan_worlds.hpp"

namespace sluice::bench {

struct PlanBenchOptions {
  int shapes = 100;      // random ones; 0: none
  bool quality = false;  // plans beside settings by hand (plan_quality.hpp), instead of times
  int first_pair = 1;    // of a model and a machine, and
  int pairs = 10;        // the number of the last
  int settings = 100;
  int small = 0;        // small models beside exhaustive search (plan_small.hpp), instead of times,
  int first_small = 0;  // from this seed on
  bool ranks = false;   // ZeRO-3 beside its limits (plan_ranks.hpp), instead of times
  bool worlds = false;  // thousands of ranks on paper (plan_worlds.hpp), instead of times
};

// Plans well-known cases, then random models of up to 100 units and 128 micro-batches with random
// budgets, for a machine that is described in the source. Runs nothing.
// {"event":"bench","name":"plan","figures":{"cases":[{case, outcome ("fits" | "refused"), cpu_s,
//   and of a plan step_s, bound_s, tokens_per_s}], "shapes":{count, fits, median_cpu_s, worst_cpu_s,
//   median_gap (step / bound - 1)}}}, or figures of "quality",
//   "small", "ranks" or "worlds" alone.
nlohmann::json run_plan_bench(const PlanBenchOptions& options, const WorldNotes& notes = {});

}  // namespace sluice::bench
