// Each preset of places (placement_presets.hpp) becomes a group of step options, from roomy to
// frugal: all weights fetched ahead, then fewer units ahead, then smaller pieces, then pieces one
// by one. Groups whose windows and arena share the device's memory follow in the same order.
#include "engine/planner/choice/candidates.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/units.hpp"
#include "engine/planner/choice/piece_sizes.hpp"
#include "engine/planner/choice/placement_presets.hpp"
#include "engine/planner/choice/rank_settings.hpp"
#include "engine/planner/choice/recompute_choice.hpp"
#include "engine/planner/choice/spill_choice.hpp"
#include "engine/schedule/compile/rank_share.hpp"

namespace sluice::planner {
namespace {

using Place = config::Config::Place;

constexpr TierShare kOnDevice{};

std::uint64_t state_bytes_of(const schedule::StepModel& model, std::size_t unit, StateKind kind) {
  const kernels::StateLayout layout = kernels::state_layout(model.optimizer, kind);
  const std::uint64_t elems = updated_elems(model, unit);
  switch (layout.extent) {
    case kernels::StateExtent::kAbsent:
      return 0;
    case kernels::StateExtent::kPerElement:
      return bytes_of(layout.dtype, elems);
    case kernels::StateExtent::kPerTensor:
      return bytes_of(layout.dtype,
                      schedule::sums_range(model, static_cast<std::int32_t>(unit)).elems());
  }
  return 0;
}

// "auto" starts with the placement that needs the least memory; update_variants() tries others.
schedule::UpdatePlacement update_placement(config::Config::OptimizerPlacement placement) {
  switch (placement) {
    case config::Config::OptimizerPlacement::kInBackward:
      return schedule::UpdatePlacement::kInBackward;
    case config::Config::OptimizerPlacement::kNextForward:
      return schedule::UpdatePlacement::kNextForward;
    case config::Config::OptimizerPlacement::kSpeculative:
      return schedule::UpdatePlacement::kSpeculative;
    default:
      return schedule::UpdatePlacement::kAfterBackward;
  }
}

// Adds the group, in both orders of passes if the choice is open: where windows and arena share the
// device, either order may be the more frugal.
void add_orders(const config::Config& config, CandidateGroup group,
                std::vector<CandidateGroup>& groups) {
  CandidateGroup by_unit = group;
  for (schedule::StepOptions& options : by_unit) options.order = schedule::ComputeOrder::kUnit;
  groups.push_back(std::move(group));
  const bool either = config.train.order == config::Config::Order::kAuto &&
                      config.train.accumulate > config.parallel.data;
  if (either) groups.push_back(std::move(by_unit));
}

Tier tier_of(Place place) {
  return static_cast<Tier>(static_cast<int>(place) - static_cast<int>(Place::kDevice));
}

// Each group once for each place of the rank's sums of micro-batches that the configuration leaves
// open.
std::vector<CandidateGroup> with_partial_places(const config::Config& config,
                                                const schedule::StepModel& model,
                                                std::vector<CandidateGroup> groups) {
  std::vector<CandidateGroup> all;
  for (CandidateGroup& group : groups) {
    for (const Tier tier : partial_tiers(config, model, group.front())) {
      all.push_back(group);
      for (schedule::StepOptions& options : all.back()) place_partials(options, tier, model);
    }
  }
  return all;
}

schedule::StepOptions base_options(const config::Config& config, const schedule::StepModel& model,
                                   const PlacementPreset& preset) {
  schedule::StepOptions base;
  set_sums(config, base);
  base.order = config.train.order == config::Config::Order::kUnit
                   ? schedule::ComputeOrder::kUnit
                   : schedule::ComputeOrder::kMicrobatch;
  base.update = update_placement(config.optimizer.placement);
  base.chunk_bytes = config.memory.chunk_bytes;
  base.durable = config.checkpoint.mode == config::Config::CheckpointMode::kDurable;
  base.carried_units = static_cast<std::int32_t>(
      std::max<std::int64_t>(base.durable ? 0 : config.optimizer.carried_units, 0));
  base.piece_elems = usual_piece_elems(model);
  base.placement = {spread(preset.weight, model), spread(preset.gradient, model),
                    spread(preset.optimizer, model),
                    spread_activations(preset.activation, model.units.size())};
  base.placement.saved = saved_places(config, model, base.placement.activation);
  return base;
}

// Adds the candidates of a placement and recomputation, from roomy to frugal. sharing: gets those
// of them that may share the device.
void add_candidates(const config::Config& config, const schedule::StepModel& model,
                    const schedule::StepOptions& base, const PlacementPreset& preset,
                    CandidateGroup& group, CandidateGroup& sharing) {
  enum class Pieces { kUsual, kSmall, kSmallOneByOne };
  const std::int64_t ahead = config.memory.prefetch;
  const auto add = [&](std::int64_t prefetch, std::uint64_t slots, Pieces pieces) {
    schedule::StepOptions& options = group.emplace_back(base);
    options.prefetch = static_cast<std::int32_t>(prefetch);
    options.weight_slots = slots;
    if (pieces != Pieces::kUsual) options.piece_elems = small_piece_elems(model);
    if (pieces == Pieces::kSmallOneByOne) {
      options.stream_lookahead = 0;
      // State of units with deferred updates is not kept twice.
      if (base.update == schedule::UpdatePlacement::kSpeculative &&
          config.optimizer.carried_units < 0 && !base.durable) {
        options.carried_units = static_cast<std::int32_t>(model.units.size()) / 2;
      }
    }
    grow_pieces(model, options);
    const bool usual = prefetch == ahead && slots == 0;
    if (!usual && (prefetch > 0 || pieces != Pieces::kSmallOneByOne)) return;
    sharing.push_back(options);
    sharing.back().shares_device = true;
  };
  const bool streamed = preset.weight.first != Tier::kDevice;
  const bool fetched = streamed || schedule::spills_activations(base.placement);
  if (streamed) add(ahead, weight_slots_of_all(model, base.chunk_bytes), Pieces::kUsual);
  add(ahead, 0, Pieces::kUsual);
  for (std::int64_t fewer = ahead / 2; fetched && fewer > 0; fewer /= 2) {
    add(fewer, 0, Pieces::kUsual);
  }
  const std::int64_t least = std::min<std::int64_t>(ahead, 1);
  if (preset.optimizer != kOnDevice) add(least, 0, Pieces::kSmall);
  if (fetched) add(least, 0, Pieces::kSmallOneByOne);
  add(0, 0, Pieces::kSmallOneByOne);
}

}  // namespace

bool shares_device(const CandidateGroup& group) {
  return group.front().shares_device;
}

std::vector<CandidateGroup> plan_candidates(const config::Config& config,
                                            const schedule::StepModel& model) {
  const std::vector<schedule::Recomputation> choices = recompute_choices(config, model);
  std::vector<CandidateGroup> groups, sharing;
  CandidateGroup open, open_sharing;
  const auto end_group = [&] {
    if (open.empty()) return;
    groups.push_back(std::exchange(open, {}));
    add_orders(config, std::exchange(open_sharing, {}), sharing);
  };
  for (const PlacementPreset& preset : placement_presets(config)) {
    schedule::StepOptions base = base_options(config, model, preset);
    const bool spills = schedule::spills_activations(base.placement);
    for (const schedule::Recomputation& recompute : choices) {
      // Segments need less than whole units only on the device, and not always there. They make
      // groups of their own.
      const auto drops = [](const schedule::UnitRecompute& unit) { return unit.output_run > 0; };
      const bool segments =
          choices.size() > 1 && std::any_of(recompute.units.begin(), recompute.units.end(), drops);
      if (segments && spills) continue;
      if (segments) end_group();
      base.recompute = recompute;
      add_candidates(config, model, base, preset, open, open_sharing);
      // Spilling with and without recomputation make two groups, since either may be the more
      // frugal: recomputation makes all of a unit's values at once, while each half of backward
      // fetches only the spilled values that it reads.
      if (spills) end_group();
    }
    end_group();
  }
  std::vector<CandidateGroup> all = with_partial_places(config, model, std::move(groups));
  sharing = with_partial_places(config, model, std::move(sharing));
  std::move(sharing.begin(), sharing.end(), std::back_inserter(all));
  return all;
}

void place_partials(schedule::StepOptions& options, Tier tier, const schedule::StepModel& model) {
  options.placement.partial.clear();
  if (tier != Tier::kDevice) options.placement.partial.assign(model.units.size(), tier);
}

std::vector<Tier> partial_tiers(const config::Config& config, const schedule::StepModel& model,
                                const schedule::StepOptions& options) {
  if (!schedule::has_partial_sums(model, options)) return {Tier::kDevice};
  const Place place = config.memory.place.partial;
  if (place != Place::kAuto) return {tier_of(place)};
  if (options.order == schedule::ComputeOrder::kUnit) return {Tier::kDevice};
  return {Tier::kDevice, Tier::kPinned, Tier::kStorage};
}

TierBytes partial_bytes(const schedule::StepModel& model, const schedule::StepOptions& options) {
  TierBytes bytes{};
  const auto sums = static_cast<std::uint64_t>(schedule::partial_sums_at_once(model, options));
  if (options.order == schedule::ComputeOrder::kUnit) return bytes;
  for (std::size_t at = 0; at < model.units.size() + (model.tied_elems > 0 ? 1 : 0); ++at) {
    // The head's rank sums the tied use.
    const std::size_t owner = std::min(at, model.units.size() - 1);
    if (!model.pipeline.owns(static_cast<std::int32_t>(owner))) continue;
    const std::size_t placed = at == model.units.size() ? 0 : at;
    const auto tier =
        static_cast<std::size_t>(options.placement.partial_of(static_cast<std::int32_t>(placed)));
    bytes[tier] +=
        sums * sizeof(float) * schedule::unit_elems(model, static_cast<std::int32_t>(at));
  }
  return bytes;
}

std::vector<schedule::StepOptions> update_variants(const config::Config& config,
                                                   const schedule::StepOptions& options) {
  if (config.optimizer.placement != config::Config::OptimizerPlacement::kAuto) return {};
  std::vector<schedule::StepOptions> variants;
  // A commit of every step leaves no update for the next forward pass.
  if (!options.durable || config.checkpoint.every != 1) {
    variants.push_back(options);
    variants.back().update = schedule::UpdatePlacement::kNextForward;
  }
  if (config.train.clip == 0 && config.train.precision != config::Config::Precision::kFP16) {
    variants.push_back(options);
    variants.back().update = schedule::UpdatePlacement::kInBackward;
  }
  return variants;
}

bool makes_all_choices(const config::Config& config) {
  using config::Config;
  const Config::Places& places = config.memory.place;
  const std::array<Config::Place, 4> of_kinds{places.weight, places.gradient, places.optimizer,
                                              places.activation};
  return std::find(of_kinds.begin(), of_kinds.end(), Config::Place::kAuto) == of_kinds.end() &&
         config.recompute.policy != Config::Recompute::kAuto &&
         config.train.order != Config::Order::kAuto &&
         config.optimizer.placement != Config::OptimizerPlacement::kAuto;
}

std::vector<schedule::StepOptions> carried_variants(const config::Config& config,
                                                    const schedule::StepOptions& options) {
  const bool in_backward = options.update == schedule::UpdatePlacement::kInBackward ||
                           options.update == schedule::UpdatePlacement::kSpeculative;
  if (config.optimizer.carried_units >= 0 || options.durable || !in_backward) return {};
  std::vector<schedule::StepOptions> variants;
  const std::size_t units = options.placement.optimizer.size();
  for (const std::size_t eighths : {0, 1, 2, 3, 4}) {
    const auto carried = static_cast<std::int32_t>(units * eighths / 8);
    if (carried == options.carried_units) continue;
    variants.push_back(options);
    variants.back().carried_units = carried;
  }
  return variants;
}

std::uint64_t weight_slots_of_all(const schedule::StepModel& model, std::uint64_t chunk_bytes) {
  std::uint64_t slots = 0;
  for (const schedule::UnitFootprint& unit : model.units) {
    slots += ceil_div(unit.elems * dtype_bytes(model.dtype), chunk_bytes);
  }
  return slots;
}

std::uint64_t updated_elems(const schedule::StepModel& model, std::size_t unit) {
  return schedule::home_range(model, StateKind::kMaster, static_cast<std::int32_t>(unit)).elems();
}

std::uint64_t largest_updated_elems(const schedule::StepModel& model) {
  std::uint64_t largest = 0;
  for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
    largest = std::max(largest, updated_elems(model, unit));
  }
  return largest;
}

std::uint64_t optimizer_state_bytes(const schedule::StepModel& model, std::size_t unit) {
  std::uint64_t bytes = 0;
  for (const StateKind kind : kOptimizerKinds) bytes += state_bytes_of(model, unit, kind);
  return bytes;
}

std::array<std::uint64_t, kTierCount> home_bytes(const schedule::StepModel& model,
                                                 const schedule::StepOptions& options) {
  std::array<std::uint64_t, kTierCount> bytes{};
  const std::uint64_t weight = dtype_bytes(model.dtype);
  const std::uint64_t gradient = dtype_bytes(schedule::gradient_home_dtype(model, options));
  const bool speculates = options.update == schedule::UpdatePlacement::kSpeculative;
  const std::int32_t carried = schedule::carried_units(options, model.units.size());
  for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
    const bool twice = speculates && static_cast<std::int32_t>(unit) >= carried;
    const std::uint64_t versions = twice ? 2 : 1;
    if (!model.pipeline.owns(static_cast<std::int32_t>(unit))) continue;
    const auto add = [&](StateKind kind, const std::vector<Tier>& tiers, std::uint64_t elem_bytes) {
      const auto at = static_cast<std::int32_t>(unit);
      bytes[static_cast<std::size_t>(tiers[unit])] +=
          schedule::home_range(model, kind, at).elems() * elem_bytes;
    };
    add(StateKind::kWeight, options.placement.weight, versions * weight);
    add(StateKind::kGradient, options.placement.gradient, gradient);
    const auto tier = static_cast<std::size_t>(options.placement.optimizer[unit]);
    bytes[tier] += versions * optimizer_state_bytes(model, unit);
  }
  return bytes;
}

std::array<std::uint64_t, kTierCount> resting_bytes(const schedule::StepModel& model,
                                                    const schedule::StepOptions& options) {
  std::array<std::uint64_t, kTierCount> bytes = home_bytes(model, options);
  const TierBytes partials = partial_bytes(model, options);
  for (std::size_t tier = 0; tier < kTierCount; ++tier) bytes[tier] += partials[tier];
  const bool by_unit = options.order == schedule::ComputeOrder::kUnit;
  const std::uint64_t live =
      by_unit ? static_cast<std::uint64_t>(schedule::own_microbatch_count(model, options)) : 1;
  for (std::size_t i = 0; i < model.units.size(); ++i) {
    const schedule::UnitFootprint& footprint = model.units[i];
    const auto unit = static_cast<std::int32_t>(i);
    if (footprint.is_head || !model.pipeline.owns(unit)) continue;
    const auto add = [&](Tier tier, std::uint64_t more) {
      bytes[static_cast<std::size_t>(tier)] += live * more;
    };
    if (!options.recompute.drops_output(unit)) {
      add(options.placement.activation_of(unit), footprint.output_bytes);
    }
    for (std::size_t part = 0; part < footprint.saved_parts.size(); ++part) {
      if (options.recompute.remakes(unit, part)) continue;
      add(options.placement.saved_of(unit, part), footprint.saved_parts[part].bytes);
    }
  }
  return bytes;
}

}  // namespace sluice::planner
