// One list decides whether a configuration fits, so it holds only the least frugal and the most
// frugal recomputation. The other one is for speed, so it holds every policy.
#include "engine/planner/choice/recompute_choice.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.hpp"

namespace sluice::planner {

std::vector<ChainUnit> chain_of(const schedule::StepModel& model, std::uint64_t live) {
  std::vector<ChainUnit> chain;
  for (std::size_t at = 1; at < model.units.size(); ++at) {
    const schedule::UnitFootprint& footprint = model.units[at];
    if (!footprint.recomputable && !footprint.is_head) return {};
    ChainUnit unit;
    unit.forward_s = 1;
    unit.output_bytes = live * footprint.output_bytes;
    unit.gradient_bytes = unit.output_bytes;
    // The head's passes of one micro-batch follow each other.
    unit.parts_bytes = (footprint.is_head ? 1 : live) * footprint.saved_bytes;
    unit.forward_bytes = unit.output_bytes + unit.parts_bytes + footprint.forward_workspace_bytes;
    unit.backward_bytes = unit.gradient_bytes + live * model.units[at - 1].output_bytes +
                          footprint.context_bytes +
                          std::max(footprint.backward_input_workspace_bytes,
                                   footprint.backward_weight_workspace_bytes);
    chain.push_back(unit);
  }
  return chain;
}

schedule::Recomputation recompute_chain(const schedule::StepModel& model,
                                        const std::vector<ChainRuns>& runs) {
  schedule::Recomputation recompute;
  recompute.units.resize(model.units.size());
  for (std::size_t i = 0; i < runs.size(); ++i) {
    schedule::UnitRecompute& unit = recompute.units[i + 1];
    unit.output_run = runs[i].output_run;
    if (runs[i].parts_run == 0) continue;
    unit.parts = schedule::all_parts(model.units[i + 1].saved_parts);
    unit.parts_run = runs[i].parts_run;
  }
  if (!recompute.any()) recompute.units.clear();
  return recompute;
}

namespace {

// Nested segments in the least memory; nothing if whole units take about as little.
std::optional<schedule::Recomputation> most_frugal_segments(const schedule::StepModel& model) {
  constexpr std::uint64_t kSlots = 400;
  const std::vector<ChainUnit> chain = chain_of(model, 1);
  if (chain.size() < 2) return std::nullopt;
  std::vector<ChainRuns> whole(chain.size(), {0, 1});
  whole.back().parts_run = 0;
  const std::uint64_t whole_bytes = chain_peak_bytes(chain, whole);
  const auto runs = most_frugal_recomputation(chain, whole_bytes, kSlots);
  if (!runs || chain_peak_bytes(chain, *runs) > whole_bytes - whole_bytes / 16) {
    return std::nullopt;
  }
  return recompute_chain(model, *runs);
}

}  // namespace

std::vector<schedule::Recomputation> recompute_choices(const config::Config& config,
                                                       const schedule::StepModel& model) {
  using Policy = config::Config::Recompute;
  switch (config.recompute.policy) {
    case Policy::kNone:
      return {{}};
    case Policy::kUnit:
      return {recompute_units(model)};
    case Policy::kSelective:
      return {recompute_parts(model, schedule::MadeBy::kElementwise)};
    case Policy::kAttention:
      return {recompute_parts(model, schedule::MadeBy::kAttention)};
    case Policy::kEvery:
      return {recompute_segments(model, static_cast<std::int32_t>(config.recompute.every))};
    case Policy::kSqrt:
      return {recompute_segments(model, sqrt_segment_length(model))};
    case Policy::kAuto: {
      std::vector<schedule::Recomputation> choices{{}, recompute_units(model)};
      if (auto segments = most_frugal_segments(model)) choices.push_back(std::move(*segments));
      return choices;
    }
  }
  throw InternalError("no such recompute.policy");
}

std::vector<schedule::Recomputation> search_recomputations(const config::Config& config,
                                                           const schedule::StepModel& model) {
  if (config.recompute.policy != config::Config::Recompute::kAuto) {
    return recompute_choices(config, model);
  }
  std::vector<schedule::Recomputation> list;
  const auto add = [&](schedule::Recomputation recompute) {
    if (std::find(list.begin(), list.end(), recompute) == list.end()) {
      list.push_back(std::move(recompute));
    }
  };
  add({});
  add(recompute_parts(model, schedule::MadeBy::kElementwise));
  add(recompute_parts(model, schedule::MadeBy::kAttention));
  add(recompute_units(model));
  add(recompute_segments(model, sqrt_segment_length(model)));
  // Without a bound no shape could be passed over.
  if (!config.memory.place.saved.empty()) return list;
  const auto units = static_cast<std::int32_t>(model.units.size());
  for (std::int32_t every = 2; every < units; every *= 2) add(recompute_segments(model, every));
  return list;
}

namespace {

using schedule::PartMask;

bool alike(const schedule::UnitFootprint& a, const schedule::UnitFootprint& b) {
  return a.recomputable == b.recomputable && a.elems == b.elems &&
         a.output_bytes == b.output_bytes && a.saved_bytes == b.saved_bytes &&
         a.saved_parts == b.saved_parts;
}

// All sets of parts that operations of a unit can recompute, with their prices.
std::vector<Remake> possible_remakes(const schedule::StepModel& model, std::int32_t unit,
                                     CostModel& costs) {
  constexpr std::size_t kMostOperations = 10;  // the sets are all unions of these
  const std::vector<schedule::SavedPart>& parts =
      model.units[static_cast<std::size_t>(unit)].saved_parts;
  const PartMask all = schedule::all_parts(parts);
  std::vector<PartMask> sets{0};
  std::size_t operations = 0;
  for (std::size_t part = 0; part < parts.size() && operations < kMostOperations; ++part) {
    const PartMask made = schedule::part_bit(part) | parts[part].made_with;
    if (!schedule::can_be_remade(parts, made)) continue;
    if (std::find(sets.begin(), sets.end(), made) != sets.end()) continue;
    ++operations;
    const std::size_t before = sets.size();
    for (std::size_t i = 0; i < before; ++i) sets.push_back(sets[i] | made);
  }
  sets.push_back(all);
  std::sort(sets.begin(), sets.end());
  sets.erase(std::unique(sets.begin(), sets.end()), sets.end());
  std::vector<Remake> remakes;
  for (const PartMask set : sets) {
    const std::uint64_t bytes = set == all ? model.units[static_cast<std::size_t>(unit)].saved_bytes
                                           : schedule::bytes_of_parts(parts, set);
    remakes.push_back({set, bytes, set == 0 ? 0 : costs.remake_s(unit, set, false)});
  }
  return remakes;
}

// The lower convex hull of seconds over bytes.
std::vector<Remake> worthwhile_of(std::vector<Remake> remakes) {
  std::stable_sort(remakes.begin(), remakes.end(), [](const Remake& a, const Remake& b) {
    return a.bytes != b.bytes ? a.bytes < b.bytes : a.seconds < b.seconds;
  });
  std::vector<Remake> hull;
  for (const Remake& next : remakes) {
    if (!hull.empty() && hull.back().bytes == next.bytes) continue;
    while (hull.size() > 1) {
      const Remake& last = hull.back();
      const Remake& before = hull[hull.size() - 2];
      const double rise =
          (last.seconds - before.seconds) * static_cast<double>(next.bytes - before.bytes);
      const double chord =
          (next.seconds - before.seconds) * static_cast<double>(last.bytes - before.bytes);
      if (rise < chord) break;
      hull.pop_back();
    }
    hull.push_back(next);
  }
  return hull;
}

}  // namespace

// Sources of a set need no place in its price: they are kept, in the set, or come back from where
// they wait.
std::vector<RemakeClass> remake_classes(const schedule::StepModel& model, CostModel& costs) {
  std::vector<RemakeClass> classes;
  for (std::size_t at = 0; at < model.units.size(); ++at) {
    const schedule::UnitFootprint& footprint = model.units[at];
    if (footprint.is_head) continue;
    const auto known = std::find_if(classes.begin(), classes.end(), [&](const RemakeClass& of) {
      return alike(model.units[of.units.front()], footprint);
    });
    if (known != classes.end()) {
      known->units.push_back(at);
      continue;
    }
    classes.push_back({{at}, {{}}, 0});
    if (!footprint.recomputable) continue;
    const auto unit = static_cast<std::int32_t>(at);
    RemakeClass& of = classes.back();
    of.remakes = worthwhile_of(possible_remakes(model, unit, costs));
    const PartMask all = schedule::all_parts(footprint.saved_parts);
    of.output_s = costs.remake_s(unit, all, true) - costs.remake_s(unit, all, false);
  }
  return classes;
}

}  // namespace sluice::planner
