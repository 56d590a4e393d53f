// `sluice bench plan --held-out SEED`: automatic plans of drawn cases compared with the best known
// plans.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "engine/planner/price/hardware_profile.hpp"
#include "engine/planner/price/tier_bytes.hpp"
#include "tools/bench/plan_by_hand.hpp"

namespace sluice::bench {

struct HeldOutCase {
  std::string model;    // its shape, its batch, the optimizer and the precision in words
  std::string machine;  // a profile of share/hardware
  planner::HardwareProfile hardware;
  Settings settings;  // of the model
  planner::TierBytes budgets{};
};

// A case is a function of its three numbers. attempt: from 0 on; the next one is drawn where the
// planner refuses a case. Throws InputError if the profiles are not next to the program.
HeldOutCase draw_held_out_case(std::uint64_t seed, int number, int attempt);

struct HeldOutOptions {
  std::uint64_t seed = 0;
  int cases = 24;
  int settings = 30;  // by hand, of each case: five complete ones, then a pair of single ones
  int threads = 2;    // that plan cases side by side
  // Tests have cases of their own.
  std::function<HeldOutCase(std::uint64_t seed, int number, int attempt)> draw = draw_held_out_case;
};

struct FoundPlan {
  std::string finder;  // "auto" or the settings, and the budget that was scaled
  double step_s = 0;
  planner::TierBytes peak_bytes{};
};

// The fastest plan with peaks within the budgets, whatever budgets it was planned with; of equal
// ones the first. Null: none fits.
const FoundPlan* best_that_fits(std::span<const FoundPlan> plans,
                                const planner::TierBytes& budgets);

// Plans each case automatically and with settings by hand, each with 0.5, 1 and 2 times the pinned
// budget, and automatically with twice the budget of each tier. The fastest of all these plans that
// fits the case's own budgets is the best known plan. Cases that the planner refuses are drawn
// again. An internal error of the planner counts as a refusal, too.
// progress: receives a line after each case, from one thread at a time.
// {"seed", "settings" (of each case), "cases":[{model, machine, settings (of the model, with the
//    budgets, each for a `--set` of `sluice plan`), device_bytes, pinned_bytes, refused (draws
//    before), step_s, cpu_s, best_s, best_by, excess (step_s / best_s - 1), fits (settings with a
//    plan that fits), complete_worst_cpu_s, more_memory:{device, pinned, storage} (the share by
//    which a step is longer with twice that budget; null: no plan),
//    failures:[{machine, settings, error}]}],
//  "refused", "failures" (their numbers), "within" (cases with an excess of at most 1%),
//  "worst_excess", "median_excess", "slower_with_more" (cases with a more_memory above 1% or null),
//  "worst_cpu_s", "median_cpu_s" (of automatic plans), "complete_worst_cpu_s"}
// CPU seconds are those of the planning thread.
nlohmann::json measure_held_out_plans(const HeldOutOptions& options,
                                      const std::function<void(const std::string&)>& progress = {});

}  // namespace sluice::bench
