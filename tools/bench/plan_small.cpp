// Each simple plan is compiled and simulated. Its training step is packed coarsely at first, which
// may overstate a need by a few percent. Of those whose need comes near the budgets, the fastest
// are compiled exactly, until one fits.
#include "tools/bench/plan_small.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/config/shapes.hpp"
#include "engine/planner/bound/plan_steps.hpp"
#include "engine/planner/choice/candidates.hpp"
#include "engine/planner/choice/recompute_choice.hpp"
#include "engine/planner/choice/spill_choice.hpp"
#include "engine/planner/footprint.hpp"
#include "engine/planner/plan.hpp"
#include "engine/planner/price/cost_model.hpp"
#include "engine/planner/trial/trials.hpp"
#include "engine/runtime/state_store.hpp"
#include "engine/schedule/compile/generate.hpp"
#include "engine/schedule/compile/link.hpp"
#include "engine/schedule/compile/pack.hpp"
#include "tools/bench/median.hpp"
#include "tools/bench/plan_cases.hpp"
#include "tools/bench/storage_rates.hpp"

namespace sluice::bench {
namespace {

using config::Config;
using nlohmann::json;
using schedule::StepOptions;

constexpr std::array<Tier, kTierCount> kTiers{Tier::kDevice, Tier::kPinned, Tier::kStorage};
constexpr std::int32_t kMostPrefetch = 3;
// Coarse packings may be this much larger than exact ones.
constexpr double kCoarseSlack = 1.15;
constexpr double kAsFast = 0.005;  // plans that take so much longer are not listed

// A tier for each kind of state and for the activations.
std::vector<schedule::Placement> whole_places(const Config& config,
                                              const schedule::StepModel& model) {
  std::vector<schedule::Placement> list;
  const std::size_t units = model.units.size();
  for (const Tier weight : kTiers) {
    for (const Tier gradient : kTiers) {
      for (const Tier optimizer : kTiers) {
        const bool there = weight == Tier::kDevice && gradient == Tier::kDevice;
        if (optimizer == Tier::kDevice && !there) continue;
        for (const Tier activation : kTiers) {
          schedule::Placement placement{
              std::vector<Tier>(units, weight), std::vector<Tier>(units, gradient),
              std::vector<Tier>(units, optimizer), std::vector<Tier>(units, activation)};
          placement.saved = planner::saved_places(config, model, placement.activation);
          list.push_back(std::move(placement));
        }
      }
    }
  }
  return list;
}

// All simple plans. Each comes in two variants: with pieces of the usual size, and the most frugal.
std::vector<StepOptions> simple_plans(const Config& config, const schedule::StepModel& model) {
  const planner::CandidateGroup group = planner::plan_candidates(config, model).front();
  std::vector<StepOptions> bases{group.front(), group.back()};
  bases.back().shares_device = true;
  std::vector<StepOptions> list;
  for (const StepOptions& base : bases) {
    std::vector<StepOptions> updates = planner::update_variants(config, base);
    updates.push_back(base);
    for (StepOptions options : updates) {
      options.weight_slots = 0;
      for (const auto order :
           {schedule::ComputeOrder::kMicrobatch, schedule::ComputeOrder::kUnit}) {
        if (order == schedule::ComputeOrder::kUnit && options.microbatches == 1) continue;
        options.order = order;
        for (const schedule::Recomputation& recompute :
             planner::search_recomputations(config, model)) {
          options.recompute = recompute;
          for (std::int32_t prefetch = 0; prefetch <= kMostPrefetch; ++prefetch) {
            options.prefetch = prefetch;
            for (const schedule::Placement& placement : whole_places(config, model)) {
              options.placement = placement;
              list.push_back(options);
            }
          }
        }
      }
    }
  }
  return list;
}

std::string tiers_text(const std::vector<Tier>& tiers) {
  std::string text;
  for (const Tier tier : tiers) text += "dps"[static_cast<std::size_t>(tier)];
  return text;
}

// "order unit, update in backward, prefetch 1, places ddp ppp pss ddd, recomputed 030".
std::string plan_text(const StepOptions& options) {
  std::string text = planner::shape_text({options.order, options.update, options.recompute});
  text += ", prefetch " + std::to_string(options.prefetch) + ", places";
  const schedule::Placement& places = options.placement;
  for (const auto* tiers : {&places.weight, &places.gradient, &places.optimizer}) {
    text += " " + tiers_text(*tiers);
  }
  text += " " + tiers_text(places.activation);
  for (const std::vector<Tier>& saved : places.saved) text += " " + tiers_text(saved);
  text += ", recomputed";
  for (const schedule::UnitRecompute& unit : options.recompute.units) {
    text += " " + std::to_string(unit.parts) + (unit.output_run > 0 ? "o" : "");
  }
  if (options.shares_device) text += ", shared device";
  if (options.weight_slots > 0) text += ", slots " + std::to_string(options.weight_slots);
  return text;
}

// A model with all that is needed to plan it.
class SmallModel {
 public:
  SmallModel(Config config, const planner::HardwareProfile& hardware)
      : config_(std::move(config)),
        kernels_(kernels::make_host_kernels({1})),
        model_(config::model_shape(config_)),
        batch_(config::batch_shape(config_)),
        step_model_(planner::make_step_model(
            model_, batch_, config::parameter_table(config_, model_), *kernels_, *kernels_)),
        hardware_(hardware),
        costs_(config_, model_, batch_, hardware),
        trials_(step_model_, costs_, {}),
        budgets_{config_.memory.device_bytes, config_.memory.pinned_bytes,
                 config_.memory.storage_bytes} {}

  struct Found {
    double step_s = 0;
    StepOptions options;
  };

  std::optional<Found> automatic() const {
    const auto result = planner::make_plan(config_, model_, *kernels_, hardware_);
    const auto* plan = std::get_if<planner::Plan>(&result);
    if (plan == nullptr) return std::nullopt;
    return Found{plan->simulation.total_s, plan->options};
  }

  std::optional<Found> best() {
    std::vector<std::pair<double, const StepOptions*>> near;
    const std::vector<StepOptions> plans = simple_plans(config_, step_model_);
    planner::TierBytes nearly = budgets_;
    for (std::uint64_t& bytes : nearly) {
      bytes = static_cast<std::uint64_t>(static_cast<double>(bytes) * kCoarseSlack);
    }
    for (const StepOptions& options : plans) {
      if (!planner::fits(planner::home_bytes(step_model_, options), budgets_)) continue;
      if (const auto seconds = coarse_s(options, nearly)) near.emplace_back(*seconds, &options);
    }
    std::stable_sort(near.begin(), near.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [seconds, options] : near) {
      planner::Compiled compiled = trials_.exact(*options);
      if (!planner::fits(compiled.need.peak_bytes(), budgets_)) continue;
      trials_.simulate(compiled);
      return Found{compiled.simulation.total_s, *options};
    }
    return std::nullopt;
  }

 private:
  std::optional<double> coarse_s(const StepOptions& options, const planner::TierBytes& budgets) {
    schedule::Schedule training =
        schedule::generate(step_model_, options, schedule::StepKind::kTraining);
    schedule::link(training);
    schedule::pack(training, kTensorAlignmentBytes, packing::PackingEffort::kCoarse);
    const std::array<const schedule::Schedule*, 1> schedules{&training};
    const runtime::MemoryNeed need =
        runtime::memory_need(schedules, runtime::StateStore::kWindowBytes);
    if (!planner::fits(need.peak_bytes(), budgets)) return std::nullopt;
    costs_.apply(training);
    return schedule::simulate(training, costs_.simulation_model()).total_s;
  }

  Config config_;
  std::unique_ptr<kernels::Kernels> kernels_;
  model::Model model_;
  model::BatchShape batch_;
  schedule::StepModel step_model_;
  const planner::HardwareProfile& hardware_;
  planner::CostModel costs_;
  planner::Trials trials_;
  planner::TierBytes budgets_;
};

}  // namespace

json measure_small_plans(int first, int count) {
  const planner::HardwareProfile hardware = plan_machine();
  std::vector<double> gains;
  std::vector<double> cpu_s;
  json slower = json::array();
  json refused = json::array();
  for (int seed = first; seed < first + count; ++seed) {
    SmallModel model(random_small_model(static_cast<std::uint64_t>(seed)), hardware);
    const auto best = model.best();
    const double begin_s = process_cpu_seconds();
    const auto automatic = model.automatic();
    const double spent_s = process_cpu_seconds() - begin_s;
    if (!best) continue;
    if (!automatic) {
      refused.push_back(seed);
      continue;
    }
    cpu_s.push_back(spent_s);
    gains.push_back(automatic->step_s / best->step_s - 1);
    if (gains.back() <= kAsFast) continue;
    slower.push_back({{"model", seed},
                      {"gain", gains.back()},
                      {"plan", plan_text(automatic->options)},
                      {"best", plan_text(best->options)}});
  }
  json figures{{"count", count}, {"fits", gains.size() + refused.size()}};
  figures["refused_wrongly"] = std::move(refused);
  figures["slower"] = std::move(slower);
  if (gains.empty()) return figures;
  figures["median_cpu_s"] = median(cpu_s);
  figures["most_cpu_s"] = *std::max_element(cpu_s.begin(), cpu_s.end());
  figures["median_gain"] = median(gains);
  figures["most_gain"] = *std::max_element(gains.begin(), gains.end());
  return figures;
}

}  // namespace sluice::bench
