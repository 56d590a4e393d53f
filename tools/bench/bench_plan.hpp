// `sluice bench plan`: the time to plan, and how good the plans are.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "tools/bench/plan_worlds.hpp"

namespace sluice::bench {

struct PlanBenchOptions {
  int shapes = 100;      // random ones; 0: none
  bool quality = false;  // plans against settings by hand (plan_quality.hpp), instead of times
  int first_pair = 1;    // of a model and a machine, and
  int pairs = 10;        // the number of the last
  std::optional<int> settings;  // of each kind, 100; of a held-out case, 30
  int small = 0;        // small models against exhaustive search (plan_small.hpp), not times,
  int first_small = 0;  // from this seed on
  bool ranks = false;   // ZeRO-3 against its limits (plan_ranks.hpp), instead of times
  bool worlds = false;  // thousands of ranks on paper (plan_worlds.hpp), instead of times
  // A seed of drawn cases (plan_held_out.hpp), instead of times.
  std::optional<std::uint64_t> held_out;
  int cases = 24;   // drawn
  int threads = 2;  // that plan them side by side
};

// Plans well-known cases, then random models of up to 100 units and 128 micro-batches with random
// budgets, for a machine that is described in the source. Runs nothing.
// {"event":"bench","name":"plan","figures":{"cases":[{case, outcome ("fits" | "refused"), cpu_s,
//   and of a plan step_s, bound_s, tokens_per_s}], "shapes":{count, fits, median_cpu_s,
//   worst_cpu_s, median_gap (step / bound - 1)}}}, or figures of "quality", "small",
//   "ranks", "worlds" or "held_out" alone.
nlohmann::json run_plan_bench(const PlanBenchOptions& options, const WorldNotes& notes = {});

}  // namespace sluice::bench
