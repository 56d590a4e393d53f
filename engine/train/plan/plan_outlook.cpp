#include "engine/train/plan/plan_outlook.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/config/schema.hpp"
#include "engine/config/shapes.hpp"
#include "engine/planner/machine_check.hpp"
#include "engine/planner/outlook.hpp"
#include "engine/train/plan/events.hpp"
#include "engine/train/plan/model_flops.hpp"

namespace sluice::train {
namespace {

RunEvent or_null(const std::optional<double>& value) {
  return value ? RunEvent(*value) : RunEvent(nullptr);
}

RunEvent memory_json(const planner::Plan& plan) {
  RunEvent rows = RunEvent::array();
  for (const planner::MemoryRow& row : planner::memory_rows(plan.of_fullest())) {
    rows.push_back({{"what", row.what}, {"bytes", tier_bytes_json(row.bytes)}, {"why", row.why}});
  }
  return rows;
}

RunEvent path_json(const planner::Plan& plan) {
  const auto& seconds = plan.critical_path.seconds;
  RunEvent json = RunEvent::object();
  for (std::size_t i = 0; i < planner::kResourceCount; ++i) {
    if (seconds[i] <= 0) continue;
    json[std::string(planner::resource_name(static_cast<planner::Resource>(i)))] =
        plan.step_share(seconds[i]);
  }
  return json;
}

// The links that the plan was priced with.
RunEvent links_json(const planner::HardwareProfile& hardware) {
  const planner::RankLinks links = hardware.rank_links_or_default();
  return {{"latency_s", links.latency_s},
          {"bytes_per_s", links.bytes_per_s},
          {"node_bytes_per_s", links.node_bytes_per_s},
          {"network_latency_s", links.network_latency_s},
          {"network_bytes_per_s", links.network_bytes_per_s},
          {"node_ranks", links.node_ranks},
          {"source", hardware.rank_links_source()}};
}

// The bytes that a step writes to the drives of the node that writes most, if its ranks all write
// as much as the one that does.
std::uint64_t written_on_node(const Prepared& prepared) {
  const planner::Plan& plan = std::get<planner::Plan>(prepared.result);
  std::uint64_t most = plan.step_bytes.storage_write;
  for (const planner::RankFigures& rank : plan.ranks) {
    most = std::max(most, rank.links.own.storage_write);
  }
  const planner::RankLinks links = prepared.hardware.rank_links_or_default();
  return plan.step_share(most) *
         static_cast<std::uint64_t>(links.ranks_of_node(plan.world_ranks()));
}

}  // namespace

std::optional<double> peak_flops(const planner::HardwareProfile& hardware,
                                 const config::Config& settled) {
  const bool gpu = settled.memory.backend == config::Config::Backend::kCuda;
  const bool fp32 = settled.train.precision == config::Config::Precision::kFP32;
  if (gpu && hardware.gpu && !fp32 && hardware.gpu->peak_bf16_flops_per_s > 0) {
    return hardware.gpu->peak_bf16_flops_per_s;
  }
  return measured_peak_flops(hardware, settled);
}

namespace {

// The budgets that the plan keeps, and the source of each.
void add_budgets(RunEvent& event, const config::Config& config) {
  const auto& memory = config.memory;
  event["budget_bytes"] =
      tier_bytes_json({memory.device_bytes, memory.pinned_bytes, memory.storage_bytes});
  constexpr std::array<const char*, 4> kNames{"configuration", "machine", "profile", "assumed"};
  RunEvent& sources = event["budget_sources"];
  for (const Tier tier : kTiers) {
    const auto at = static_cast<std::size_t>(tier);
    sources[std::string(tier_name(tier))] =
        kNames.at(static_cast<std::size_t>(memory.budget_origins[at]));
  }
}

}  // namespace

RunEvent prepared_event(const Prepared& prepared) {
  const config::Config& config = prepared.config;
  RunEvent event = plan_event(std::get<planner::Plan>(prepared.result));
  add_device(event, prepared.backend, measured_peak_flops(prepared.hardware, config));
  add_budgets(event, config);
  if (event.contains("pipeline")) {
    const config::ConfigKey& key = *config::find_config_key("parallel.schedule");
    event["pipeline"]["order"] = std::get<std::string>(key.read(config));
  }
  RunEvent& batch = event["batch"];
  batch = {{"samples", config.train.micro_batch * config.train.accumulate},
           {"micro_batch", config.train.micro_batch},
           {"accumulate", config.train.accumulate}};
  for (const planner::TriedSplit& split : prepared.splits) {
    batch["tried"].push_back({{"micro_batch", split.micro_batch},
                              {"bound_s", split.bound_s},
                              {"step_time_s", or_null(split.step_s)}});
  }
  return event;
}

RunEvent outlook_json(const Prepared& prepared) {
  const planner::Plan& plan = std::get<planner::Plan>(prepared.result);
  const config::Config& config = prepared.config;
  const double step_s = plan.step_s();
  const auto tokens =
      static_cast<double>(config.train.seq * config.train.micro_batch * config.train.accumulate);
  const double flops_per_s =
      flops_per_token(config::model_shape(config), config.train.seq) * tokens / step_s;
  const std::optional<double> peak = peak_flops(prepared.hardware, config);
  RunEvent outlook{
      {"step_time_s", step_s},
      {"tokens_per_step", tokens},
      {"tokens_per_s", tokens / step_s},
      {"flops_per_s", flops_per_s},
      {"peak_flops_per_s", or_null(peak)},
      {"mfu", peak ? RunEvent(flops_per_s / (*peak * plan.world_ranks())) : RunEvent(nullptr)},
      {"critical_path_s", path_json(plan)},
      {"memory", memory_json(plan)}};
  outlook["bound_s"] = plan.bound_s > 0 ? RunEvent(plan.bound_s) : RunEvent(nullptr);
  outlook["break_even"] = nullptr;
  if (const auto even =
          planner::break_even(plan.of_slowest(), tokens, prepared.simulation_model())) {
    outlook["break_even"] = {{"tokens_per_step", even->tokens},
                             {"with", std::string(planner::resource_name(even->with))}};
  }
  const planner::Wear wear =
      planner::wear(written_on_node(prepared), step_s, prepared.hardware.storage_tbw);
  outlook["wear"] = {{"bytes_per_day", wear.bytes_per_day},
                     {"days_to_endurance", or_null(wear.days_to_endurance)}};
  if (!plan.is_alone()) outlook["rank_links"] = links_json(prepared.hardware);
  return outlook;
}

RunEvent complete_event(const Prepared& prepared) {
  RunEvent event = prepared_event(prepared);
  const planner::Plan& plan = std::get<planner::Plan>(prepared.result);
  // Measured shares are known only when a run begins.
  if (plan.need.storage_bytes > 0 && !prepared.config.memory.storage_shares.empty()) {
    event["storage_shares"] = planner::configured_layout(prepared.config).shares();
  }
  event["outlook"] = outlook_json(prepared);
  return event;
}

RunEvent next_changes_json(const std::vector<NextChange>& changes) {
  RunEvent list = RunEvent::array();
  for (const NextChange& change : changes) {
    list.push_back({{"change", change.name},
                    {"step_time_s", change.step_s},
                    {"tokens_per_s", change.tokens_per_s},
                    {"gain", change.gain},
                    {"changes_results", change.changes_results}});
  }
  return list;
}

}  // namespace sluice::train
