#include "engine/train/plan/events.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/units.hpp"

namespace sluice::train {

RunEvent tier_bytes_json(const planner::TierBytes& bytes) {
  RunEvent json = RunEvent::object();
  for (const Tier tier : kTiers) {
    json[std::string(tier_name(tier))] = bytes[static_cast<std::size_t>(tier)];
  }
  return json;
}

RunEvent verb_bytes_json(const VerbUse::Peaks& peaks) {
  RunEvent json = RunEvent::object();
  for (const planner::Verb verb : planner::kVerbs) {
    const auto& bytes = peaks[static_cast<std::size_t>(verb)];
    if (bytes) json[std::string(planner::verb_name(verb))] = tier_bytes_json(*bytes);
  }
  return json;
}

RunEvent link_bytes_json(const schedule::LinkBytes& bytes) {
  return {{"upload", bytes.upload},
          {"download", bytes.download},
          {"storage_read", bytes.storage_read},
          {"storage_write", bytes.storage_write}};
}

namespace {

VerbUse::Peaks every_verb(const planner::VerbPeaks& planned) {
  VerbUse::Peaks peaks;
  std::copy(planned.begin(), planned.end(), peaks.begin());
  return peaks;
}

// Units per tier, of each kind.
RunEvent placement_json(const planner::Plan& plan) {
  const auto kind = [&](const std::vector<Tier>& tiers) {
    RunEvent counts = RunEvent::object();
    for (const Tier tier : tiers) {
      const std::string name(tier_name(tier));
      counts[name] = counts.value(name, 0) + 1;
    }
    return counts;
  };
  const schedule::Placement& placement = plan.options.placement;
  return {{"weight", kind(placement.weight)},
          {"gradient", kind(placement.gradient)},
          {"optimizer", kind(placement.optimizer)},
          {"activation", kind(placement.activation)}};
}

// Bytes of each kind on the tiers where it lies.
RunEvent places_json(const planner::Plan& plan) {
  RunEvent json = RunEvent::object();
  for (std::size_t kind = 0; kind < kStateKindCount; ++kind) {
    RunEvent& tiers = json[std::string(state_kind_name(static_cast<StateKind>(kind)))];
    tiers = RunEvent::object();
    for (const Tier tier : kTiers) {
      const std::uint64_t bytes = plan.kind_bytes[kind][static_cast<std::size_t>(tier)];
      if (bytes > 0) tiers[std::string(tier_name(tier))] = bytes;
    }
  }
  return json;
}

// A step's share of the bytes that the forward passes save, by part and by the tier that holds
// them.
RunEvent saved_json(const planner::Plan& plan) {
  RunEvent json = RunEvent::object();
  for (const auto& [part, by_tier] : plan.saved_bytes) {
    RunEvent& tiers = json[part];
    tiers = RunEvent::object();
    for (const Tier tier : kTiers) {
      const std::uint64_t bytes = by_tier[static_cast<std::size_t>(tier)];
      if (bytes > 0) tiers[std::string(tier_name(tier))] = plan.step_share(bytes);
    }
  }
  return json;
}

// Units that recompute saved parts, of those that could, and the bytes of these parts for one
// micro-batch.
RunEvent recomputed_json(const schedule::RecomputeSummary& recompute) {
  return {{"units", recompute.units},
          {"of_units", recompute.of},
          {"saved_bytes", recompute.freed_bytes}};
}

// As the configuration spells it.
const char* update_placement_name(schedule::UpdatePlacement update) {
  switch (update) {
    case schedule::UpdatePlacement::kInBackward:
      return "in_backward";
    case schedule::UpdatePlacement::kNextForward:
      return "next_forward";
    case schedule::UpdatePlacement::kSpeculative:
      return "speculative";
    case schedule::UpdatePlacement::kAfterBackward:
      break;
  }
  return "after_backward";
}

// Bytes by kind, and the optimizer's bytes for each parameter (with padding).
RunEvent state_json(const planner::Plan& plan) {
  RunEvent json = RunEvent::object();
  std::uint64_t optimizer = 0;
  for (std::size_t kind = 0; kind < kStateKindCount; ++kind) {
    json[std::string(state_kind_name(static_cast<StateKind>(kind)))] =
        plan.state_bytes_of(static_cast<StateKind>(kind));
  }
  for (const StateKind kind : kOptimizerKinds) optimizer += plan.state_bytes_of(kind);
  json["optimizer_bytes_per_parameter"] =
      static_cast<double>(optimizer) / static_cast<double>(plan.parameters);
  return json;
}

RunEvent sent_json(const planner::Plan& plan, const planner::SentBytes& sent) {
  RunEvent json{{"gradients", plan.step_share(sent.gradients)},
                {"weights", plan.step_share(sent.weights)},
                {"norm", plan.step_share(sent.norm)}};
  if (sent.activations > 0) json["activations"] = plan.step_share(sent.activations);
  if (sent.inner > 0) json["inner"] = plan.step_share(sent.inner);
  return json;
}

// The pipeline: its stages, the micro-batches in flight on each of its ranks, and the bubble of its
// order of passes with the share of the span.
RunEvent pipeline_json(const planner::Plan& plan) {
  RunEvent stages = RunEvent::array();
  for (std::size_t stage = 0; stage < plan.pipeline.units.size(); ++stage) {
    const schedule::UnitRange& units = plan.pipeline.units[stage];
    stages.push_back({{"rank", plan.pipeline.order.rank_of(static_cast<std::int32_t>(stage))},
                      {"units", {units.begin, units.end}}});
  }
  RunEvent json{{"ranks", plan.pipeline.ranks()},
                {"stages", stages},
                {"in_flight", schedule::most_in_flight(plan.pipeline.order)}};
  if (plan.pipeline.order.delays_updates()) {
    json["updates"] = plan.updates();
    json["weight_versions"] = schedule::most_live_versions(plan.pipeline.order);  // by stage
  }
  json["bubble_s"] = plan.step_share(plan.pipeline_bubble_s);
  json["bubble_share"] =
      plan.pipeline_span_s > 0 ? plan.pipeline_bubble_s / plan.pipeline_span_s : 0.0;
  return json;
}

// Seconds of a simulated step; shares that take no time are left out.
RunEvent shares_json(const planner::Plan& plan, const planner::StepShares& shares) {
  RunEvent json = RunEvent::object();
  for (const auto& [name, seconds] :
       {std::pair("passes", shares.passes_s), std::pair("updates", shares.updates_s),
        std::pair(plan.inner_name(), shares.inner_s), std::pair("data", shares.data_s),
        std::pair("bubble", shares.bubble_s), std::pair("slower_stages", shares.imbalance_s),
        std::pair("messages", shares.messages_s), std::pair("transfers", shares.transfers_s)}) {
    if (seconds > 0) json[name] = plan.step_share(seconds);
  }
  return json;
}

// Bytes of a step: of a rank's own links, and those that it exchanges with other ranks.
RunEvent moved_json(const planner::Plan& plan, const planner::RankFigures& figures) {
  RunEvent moved = link_bytes_json(plan.step_share(figures.links.own));
  moved["sent"] = {{"data", plan.step_share(figures.sent.total())}};
  moved["received"] = {{"data", plan.step_share(figures.received_bytes)}};
  if (!plan.view.tensor.is_alone()) {
    moved["sent"][plan.inner_name()] = moved["received"][plan.inner_name()] =
        plan.step_share(figures.sent.inner);
  }
  if (!plan.pipeline.is_alone()) {
    moved["sent"]["pipeline"] = plan.step_share(figures.sent.activations);
    moved["received"]["pipeline"] = plan.step_share(figures.received_stages_bytes);
  }
  return moved;
}

// Names a class of ranks, or one rank.
RunEvent class_json(const planner::Plan& plan, const planner::RankFigures& figures) {
  RunEvent json{{"rank", figures.rank}, {"last_rank", figures.last_rank}, {"alike", figures.alike}};
  if (plan.pipeline.is_alone()) return json;
  const std::int32_t of = figures.rank / plan.view.tensor.ranks / plan.view.ranks;
  RunEvent& stages = json["stages"] = RunEvent::array();
  for (std::int32_t stage = 0; stage < plan.pipeline.order.stages(); ++stage) {
    if (plan.pipeline.order.rank_of(stage) == of) stages.push_back(stage);
  }
  return json;
}

// The job as a whole: the ranks that end last and the ranks that need most.
RunEvent job_json(const planner::Plan& plan) {
  const planner::RankFigures& slowest = plan.ranks[plan.slowest];
  const planner::RankFigures& fullest = plan.ranks[plan.fullest];
  const planner::Plan& full = plan.of_fullest();
  RunEvent job{{"slowest", class_json(plan, slowest)}, {"fullest", class_json(plan, fullest)}};
  job["slowest"]["end_s"] = plan.step_share(slowest.end_s);
  job["slowest"]["shares_s"] = shares_json(plan, slowest.shares);
  job["slowest"]["bytes_moved"] = moved_json(plan, slowest);
  RunEvent& most = job["fullest"];
  most["peak_bytes"] = tier_bytes_json(full.peak_bytes);
  most["peak_bytes_by_verb"] = verb_bytes_json(every_verb(full.verb_peaks));
  most["state_bytes"] = full.state_bytes;
  most["state_by_tier"] = places_json(full);
  most["activation_bytes_moved"] = link_bytes_json(full.step_share(full.activation_bytes));
  most["saved_by_tier"] = saved_json(full);
  return job;
}

// The sums over all ranks of a plan by classes: bytes of a step by kind of link, and the fullest
// rank.
RunEvent world_json(const planner::Plan& plan) {
  std::uint64_t node = 0, network = 0;
  schedule::LinkBytes own;
  planner::TierBytes fullest{};
  for (const planner::RankFigures& figures : plan.ranks) {
    const auto alike = static_cast<std::uint64_t>(figures.alike);
    const schedule::LinkBytes& each = figures.links.own;
    node += alike * figures.links.node;
    network += alike * figures.links.network;
    own += schedule::LinkBytes{alike * each.upload, alike * each.download,
                               alike * each.storage_read, alike * each.storage_write};
    for (std::size_t tier = 0; tier < kTierCount; ++tier) {
      fullest[tier] = std::max(fullest[tier], figures.peak_bytes[tier]);
    }
  }
  RunEvent bytes = link_bytes_json(plan.step_share(own));
  bytes["node"] = plan.step_share(node);
  bytes["network"] = plan.step_share(network);
  return {{"classes", plan.ranks.size()},
          {"bytes_moved", bytes},
          {"peak_bytes", tier_bytes_json(fullest)}};
}

// The ranks of the plan, and the bytes between them by mesh dimension.
void add_ranks(const planner::Plan& plan, RunEvent& event) {
  if (plan.is_alone()) return;
  const bool has_stages = !plan.pipeline.is_alone();
  event["ranks"] = plan.world_ranks();
  if (has_stages) event["pipeline"] = pipeline_json(plan);
  if (plan.view.tensor.parts() > 1) event["tensor"] = plan.view.tensor.parts();
  if (plan.view.tensor.contexts > 1) event["context"] = plan.view.tensor.contexts;
  event["zero"] = plan.view.zero_stage;
  event["fold_groups"] = plan.options.fold_groups;
  event["server"] = plan.view.has_server;
  if (plan.view.has_server) {
    event["server_mode"] = plan.view.is_asynchronous() ? "asp"
                           : plan.view.rotates         ? "rotating"
                                                       : "bsp";
  }
  event["reduction"] = plan.options.sum == schedule::GradientSum::kRing ? "ring" : "tree";
  if (plan.options.fold_groups > 1 && plan.options.microbatches > plan.view.ranks) {
    event["partial_sums"] = std::string(tier_name(plan.options.placement.partial_of(0)));
  }
  if (plan.by_classes) event["world"] = world_json(plan);
  RunEvent& all = event["per_rank"] = RunEvent::array();
  for (const planner::RankFigures& figures : plan.ranks) {
    all.push_back({{"rank", figures.rank},
                   {"sent", sent_json(plan, figures.sent)},
                   {"received", plan.step_share(figures.received_bytes)},
                   {"state_bytes", figures.state_bytes},
                   {"peak_bytes", tier_bytes_json(figures.peak_bytes)}});
    if (plan.by_classes) {
      all.back()["alike"] = figures.alike;
      all.back()["sent_node"] = plan.step_share(figures.links.node);
      all.back()["sent_network"] = plan.step_share(figures.links.network);
    }
    if (has_stages || plan.by_classes) {
      all.back()["compute_s"] = plan.step_share(figures.compute_s);
      all.back()["bubble_s"] = plan.step_share(figures.shares.bubble_s);
      all.back()["end_s"] = plan.step_share(figures.end_s);
    }
    if (figures.rank == plan.world_rank()) event["bytes_moved"] = moved_json(plan, figures);
  }
  if (plan.knows_all_ranks()) event["job"] = job_json(plan);
}

}  // namespace

RunEvent stalls_json(const runtime::Stalls& stalls) {
  RunEvent causes = RunEvent::object();
  for (std::size_t cause = 0; cause < runtime::kStallCauseCount; ++cause) {
    if (stalls.by_cause_s[cause] <= 0) continue;
    causes[std::string(runtime::stall_cause_name(static_cast<runtime::StallCause>(cause)))] =
        stalls.by_cause_s[cause];
  }
  return {{"compute_s", stalls.compute_s}, {"stalled_s", stalls.total_s()}, {"by_cause_s", causes}};
}

RunEvent plan_event(const planner::Plan& plan) {
  RunEvent event = {
      {"event", "plan"},
      {"fits", true},
      {"peak_bytes", tier_bytes_json(plan.peak_bytes)},
      {"peak_bytes_by_verb", verb_bytes_json(every_verb(plan.verb_peaks))},
      {"file_bytes", {{"save", plan.checkpoint_file_bytes}, {"export", plan.export_file_bytes}}},
      {"bytes_moved", link_bytes_json(plan.step_share(plan.step_bytes))},
      {"activation_bytes_moved", link_bytes_json(plan.step_share(plan.activation_bytes))},
      {"step_time_s", plan.step_s()},
      {"bound_by", plan.bound_by},
      {"profile", plan.profile},
      {"parameters", plan.parameters},
      {"state_bytes", plan.state_bytes},
      {"state", state_json(plan)},
      {"recompute", plan.recompute.policy},
      {"recomputed", recomputed_json(plan.recompute)},
      {"order", plan.options.order == schedule::ComputeOrder::kUnit ? "unit" : "microbatch"},
      {"turns", plan.options.turns},
      {"optimizer_placement", update_placement_name(plan.options.update)},
      {"carried_units",
       schedule::carried_units(plan.options, plan.options.placement.weight.size())},
      {"prefetch", plan.options.prefetch},
      {"shares_device", plan.options.shares_device},
      {"units_by_tier", placement_json(plan)},
      {"state_by_tier", places_json(plan)},
      {"saved_by_tier", saved_json(plan)},
      {"evaluation_bytes_moved", link_bytes_json(plan.evaluation_bytes)}};
  if (plan.speculates()) {
    event["speculation"] = {{"second_version_bytes", tier_bytes_json(plan.shadow_bytes)},
                            {"redo_bytes_moved", link_bytes_json(plan.redo_bytes)},
                            {"redo_time_s", plan.redo_s}};
  }
  if (plan.options.durable) event["saving_bytes_moved"] = link_bytes_json(plan.saving_bytes);
  add_ranks(plan, event);
  return event;
}

void add_device(RunEvent& plan, const Backend& backend, std::optional<double> peak_flops_per_s) {
  plan["backend"] = backend.name;
  plan["device_name"] = backend.device_name;
  if (!backend.gpu_missing.empty()) plan["gpu_missing"] = backend.gpu_missing;
  plan["peak_flops_per_s"] = peak_flops_per_s ? RunEvent(*peak_flops_per_s) : RunEvent(nullptr);
}

RunEvent refused_event(const planner::Refusal& refusal) {
  RunEvent tiers = RunEvent::object();
  for (const Tier tier : kTiers) {
    const auto at = static_cast<std::size_t>(tier);
    if (refusal.needed_bytes[at] <= refusal.available_bytes[at]) continue;
    tiers[std::string(tier_name(tier))] = {{"needed", refusal.needed_bytes[at]},
                                           {"available", refusal.available_bytes[at]}};
  }
  RunEvent suggestions = RunEvent::array();
  for (const planner::Suggestion& suggestion : refusal.suggestions) {
    RunEvent change = RunEvent::object();
    for (const auto& [key, bytes] : suggestion) change[key] = format_bytes_exact(bytes);
    suggestions.push_back(change);
  }
  RunEvent others = RunEvent::array();
  for (const planner::OtherChange& other : refusal.other_changes) {
    RunEvent settings = RunEvent::object();
    for (const auto& [key, value] : other.settings) settings[key] = value;
    others.push_back({{"settings", settings}, {"changes_results", other.changes_results}});
  }
  return {{"event", "refused"},
          {"tiers", tiers},
          {"suggestions", suggestions},
          {"other_changes", others},
          {"message", refusal.sentence()}};
}

}  // namespace sluice::train
