// The event of each part of the bench: times and bounds, quality, small models.
#include "tools/bench/bench_plan.hpp"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.hpp"
#include "engine/config/shapes.hpp"
#include "engine/planner/plan.hpp"
#include "tools/bench/median.hpp"
#include "tools/bench/plan_cases.hpp"
#include "tools/bench/plan_held_out.hpp"
#include "tools/bench/plan_quality.hpp"
#include "tools/bench/plan_ranks.hpp"
#include "tools/bench/plan_small.hpp"
#include "tools/bench/plan_worlds.hpp"
#include "tools/bench/storage_rates.hpp"

namespace sluice::bench {
namespace {

using config::Config;
using nlohmann::json;

constexpr int kQualitySettings = 100;

// What planning the configuration took and gave.
json planned(const Config& config, const planner::HardwareProfile& hardware) {
  const std::unique_ptr<kernels::Kernels> kernels = kernels::make_host_kernels({1});
  const model::Model model(config::model_shape(config));
  const double begin_s = process_cpu_seconds();
  const auto result = planner::make_plan(config, model, *kernels, hardware);
  json figures{{"cpu_s", process_cpu_seconds() - begin_s}};
  const auto* plan = std::get_if<planner::Plan>(&result);
  figures["outcome"] = plan == nullptr ? "refused" : "fits";
  if (plan == nullptr) return figures;
  const double step_s = plan->simulation.total_s;
  const auto tokens = config.train.seq * config.train.micro_batch * config.train.accumulate;
  figures["step_s"] = step_s;
  figures["bound_s"] = plan->bound_s;
  figures["tokens_per_s"] = static_cast<double>(tokens) / step_s;
  return figures;
}

json random_shapes(int count, const planner::HardwareProfile& hardware) {
  std::vector<double> seconds;
  std::vector<double> gaps;
  for (int shape = 0; shape < count; ++shape) {
    const json figures = planned(random_plan_shape(static_cast<std::uint64_t>(shape)), hardware);
    seconds.push_back(figures["cpu_s"].get<double>());
    if (figures["outcome"] != "fits") continue;
    gaps.push_back(figures["step_s"].get<double>() / figures["bound_s"].get<double>() - 1);
  }
  json figures{{"count", count}, {"fits", gaps.size()}};
  figures["median_cpu_s"] = median(seconds);
  figures["worst_cpu_s"] = *std::max_element(seconds.begin(), seconds.end());
  if (!gaps.empty()) figures["median_gap"] = median(gaps);
  return figures;
}

json times_and_bounds(int shapes) {
  const planner::HardwareProfile hardware = plan_machine();
  json list = json::array();
  for (const PlanCase& known : plan_cases()) {
    json figures = planned(known.config, hardware);
    figures["case"] = known.name;
    list.push_back(std::move(figures));
  }
  json figures{{"cases", std::move(list)}};
  if (shapes > 0) figures["shapes"] = random_shapes(shapes, hardware);
  return figures;
}

}  // namespace

json run_plan_bench(const PlanBenchOptions& options, const WorldNotes& notes) {
  if (options.shapes < 0 || options.small < 0 || options.first_small < 0 ||
      options.settings.value_or(1) < 1) {
    throw InputError("bench: --shapes and --small must not be negative, nor --settings zero");
  }
  if (options.pairs < 1 || options.pairs > plan_quality_pairs()) {
    throw InputError("bench: --pairs must be 1 to " + std::to_string(plan_quality_pairs()));
  }
  if (options.first_pair < 1 || options.first_pair > options.pairs) {
    throw InputError("bench: --first-pair must be 1 to --pairs");
  }
  if (options.cases < 1 || options.threads < 1) {
    throw InputError("bench: --cases and --threads must be at least 1");
  }
  json figures;
  if (options.quality) {
    figures["quality"] = measure_plan_quality(options.first_pair, options.pairs,
                                              options.settings.value_or(kQualitySettings));
  }
  if (options.held_out) {
    HeldOutOptions held_out;
    held_out.seed = *options.held_out;
    held_out.cases = options.cases;
    held_out.settings = options.settings.value_or(held_out.settings);
    held_out.threads = options.threads;
    figures["held_out"] = measure_held_out_plans(held_out, notes.done);
  }
  if (options.small > 0) figures["small"] = measure_small_plans(options.first_small, options.small);
  if (options.ranks) figures["ranks"] = measure_rank_plans();
  if (options.worlds) figures["worlds"] = measure_world_plans(notes);
  if (figures.is_null()) figures = times_and_bounds(options.shapes);
  return {{"event", "bench"}, {"name", "plan"}, {"figures", std::move(figures)}};
}

}  // namespace sluice::bench
