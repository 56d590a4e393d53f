// A unit's ways are few: the worthwhile sets of parts to recompute, each with the other parts and
// the output in one tier. Mixtures over the units do the rest. Work that the ways do not change
// comes from the places of weights and gradients.
//
// Units that recompute much come first and those that keep most last: backward meets these first,
// and the memory that they free takes the parts that the others make. Units that send values off
// the device are spread evenly, so that the link has time for each.
#include "engine/planner/bound/activation_choice.hpp"

#include <algorithm>

#include "engine/planner/choice/recompute_choice.hpp"
#include "engine/planner/price/rank_traffic.hpp"
#include "engine/schedule/compile/rank_share.hpp"

namespace sluice::planner {
namespace {

using Place = config::Config::Place;

// A choice this far from the best is as good, since the model of the time is coarse.
constexpr double kGap = 1e-3;
constexpr std::size_t kMostNodes = 60;
// Among equally fast choices, one with less work for the links is better.
constexpr double kWorkWeight = 1e-2;
// Amounts of memory that a chain counts in. Each unit's sizes are rounded up to these.
constexpr std::uint64_t kChainSlots = 400;

std::int32_t as_id(std::size_t unit) {
  return static_cast<std::int32_t>(unit);
}

// The micro-batches whose values wait at the same time.
std::uint64_t live_microbatches(const schedule::StepModel& model,
                                const schedule::StepOptions& options) {
  const bool all = options.order == schedule::ComputeOrder::kUnit;
  return all ? static_cast<std::uint64_t>(own_microbatch_count(model, options)) : 1;
}

}  // namespace

ActivationChoice::ActivationChoice(const config::Config& config, const schedule::StepModel& model,
                                   CostModel& costs)
    : config_(config),
      model_(model),
      costs_(costs),
      rates_(costs.rates()),
      machine_(costs.simulation_model()) {
  if (!is_free()) return;
  for (const RemakeClass& of : remake_classes(model, costs)) {
    classes_.push_back({of.units, ways_of(of)});
  }
}

bool ActivationChoice::is_free() const {
  return config_.recompute.policy == config::Config::Recompute::kAuto &&
         config_.memory.place.saved.empty();
}

std::vector<ActivationChoice::Way> ActivationChoice::ways_of(const RemakeClass& of) const {
  const Place place = config_.memory.place.activation;
  const std::uint64_t saved = model_.units[of.units.front()].saved_bytes;
  std::vector<Way> ways;
  for (const Tier tier : {Tier::kStorage, Tier::kPinned, Tier::kDevice}) {
    const auto fixed =
        static_cast<Place>(static_cast<int>(Place::kDevice) + static_cast<int>(tier));
    if (place != Place::kAuto && place != fixed) continue;
    for (auto remake = of.remakes.rbegin(); remake != of.remakes.rend(); ++remake) {
      const Way way{remake->parts, remake->seconds, tier, tier};
      ways.push_back(way);
      const bool apart = place == Place::kAuto && tier != Tier::kDevice && remake->bytes < saved;
      if (!apart) continue;
      ways.push_back(way);
      ways.back().output = Tier::kDevice;
    }
  }
  return ways;
}

// Weights come up for both passes and gradients go down, as far as they are not on the device. The
// update counts where it shares a phase with a pass.
StepWork<double> ActivationChoice::fixed_work(const schedule::StepOptions& from) const {
  const auto microbatches = static_cast<double>(own_microbatch_count(model_, from));
  const double fetches = from.order == schedule::ComputeOrder::kUnit ? 1 : microbatches;
  const double arrivals = gradient_arrivals(model_, from);
  double all = 0;
  double fetched = 0;  // bytes of weights
  double read = 0;     // of these from storage
  double sent = 0;     // bytes of gradients
  double updated = 0;  // elements, by the host
  for (std::size_t unit = 0; unit < model_.units.size(); ++unit) {
    const auto elems = [&](StateKind kind) {
      return static_cast<double>(schedule::home_range(model_, kind, as_id(unit)).elems());
    };
    const auto elem_bytes = static_cast<double>(dtype_bytes(model_.dtype));
    const double bytes = elems(StateKind::kWeight) * elem_bytes;
    all += static_cast<double>(model_.units[unit].elems);
    if (from.placement.weight[unit] != Tier::kDevice) fetched += bytes;
    if (from.placement.weight[unit] == Tier::kStorage) read += bytes;
    if (from.placement.gradient[unit] != Tier::kDevice) {
      sent += elems(StateKind::kGradient) * elem_bytes;
    }
    if (from.placement.optimizer[unit] != Tier::kDevice) updated += elems(StateKind::kMaster);
  }
  StepWork<double> work;
  PhaseWork<double>& forward = work[kForwardPhase];
  PhaseWork<double>& backward = work[kBackwardPhase];
  forward.compute = microbatches * rates_.forward_s;
  backward.compute = microbatches * rates_.backward_s;
  for (PhaseWork<double>* phase : {&forward, &backward}) {
    phase->fetch(fetches * fetched, fetches * read, rates_);
  }
  backward.download = arrivals * sent * rates_.copy_s;
  if (from.update == schedule::UpdatePlacement::kAfterBackward || all == 0) return work;
  const bool in_forward = from.update == schedule::UpdatePlacement::kNextForward;
  (in_forward ? forward : backward).optimizer = rates_.host.update_s * updated / all;
  return work;
}

// By phase: each lane, storage in both directions, and the cores that lanes share.
std::vector<double> ActivationChoice::resource_seconds(const StepWork<double>& work) const {
  std::vector<double> seconds;
  for (const PhaseWork<double>& phase : {work[kForwardPhase], work[kBackwardPhase]}) {
    seconds.insert(seconds.end(),
                   {phase.compute, phase.upload, phase.download, phase.optimizer, phase.read,
                    phase.write, (phase.read + phase.write) / machine_.storage_duplex,
                    machine_.cores > 0 ? phase.core_seconds(machine_) / machine_.cores : 0});
  }
  return seconds;
}

Knapsack::Option ActivationChoice::option(const schedule::StepOptions& from, std::size_t unit,
                                          const Way& way) const {
  const schedule::UnitFootprint& footprint = model_.units[unit];
  const auto microbatches = static_cast<double>(own_microbatch_count(model_, from));
  const std::uint64_t remade = way.remade == schedule::all_parts(footprint.saved_parts)
                                   ? footprint.saved_bytes
                                   : schedule::bytes_of_parts(footprint.saved_parts, way.remade);
  Knapsack::Option option;
  StepWork<double> work;
  work[kBackwardPhase].compute = microbatches * way.remake_s;
  for (const auto& [tier, bytes] : {std::pair(way.parts, footprint.saved_bytes - remade),
                                    std::pair(way.output, footprint.output_bytes)}) {
    option.bytes[static_cast<std::size_t>(tier)] += live_microbatches(model_, from) * bytes;
    work.keep(microbatches * static_cast<double>(bytes), tier, rates_);
  }
  option.seconds = resource_seconds(work);
  return option;
}

// The way of each unit of a class, in model order.
std::vector<std::size_t> ActivationChoice::dealt(const UnitClass& of,
                                                 const std::vector<std::int64_t>& counts) {
  std::vector<std::size_t> leaving;
  std::vector<std::size_t> staying;
  for (std::size_t way = 0; way < of.ways.size(); ++way) {
    std::vector<std::size_t>& list = of.ways[way].leaves() ? leaving : staying;
    list.insert(list.end(), static_cast<std::size_t>(counts[way]), way);
  }
  std::vector<std::size_t> ways;
  std::size_t left = 0;
  for (std::size_t unit = 0; unit < of.units.size(); ++unit) {
    // The first of each equal stretch of units leaves.
    const bool leaves = left * of.units.size() <= unit * leaving.size() && left < leaving.size();
    ways.push_back(leaves ? leaving[left] : staying[unit - left]);
    left += leaves ? 1 : 0;
  }
  return ways;
}

std::optional<schedule::StepOptions> ActivationChoice::by_parts(const schedule::StepOptions& from,
                                                                const TierBytes& room,
                                                                Spills spills) const {
  Knapsack knapsack;
  knapsack.budgets = room;
  knapsack.work_weight = kWorkWeight;
  const bool stay = spills == Spills::kNever && config_.memory.place.activation == Place::kAuto;
  const std::vector<double> fixed = resource_seconds(fixed_work(from));
  for (std::size_t i = 0; i < fixed.size(); ++i) {
    knapsack.resources.push_back({i < fixed.size() / 2 ? std::size_t{0} : 1, fixed[i]});
  }
  std::vector<UnitClass> classes = classes_;
  for (UnitClass& of : classes) {
    if (stay) std::erase_if(of.ways, [](const Way& way) { return way.leaves(); });
    Knapsack::UnitClass equal{static_cast<std::int64_t>(of.units.size()), {}};
    for (const Way& way : of.ways) {
      equal.options.push_back(option(from, of.units.front(), way));
    }
    knapsack.classes.push_back(std::move(equal));
  }
  const std::optional<Knapsack::Choice> choice = knapsack.solve(kGap, kMostNodes);
  if (!choice) return std::nullopt;
  schedule::StepOptions options = from;
  options.recompute.units.assign(model_.units.size(), {});
  options.placement.activation.assign(model_.units.size(), Tier::kDevice);
  options.placement.saved.assign(model_.units.size(), {});
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const std::vector<std::size_t> ways = dealt(classes[i], choice->counts[i]);
    for (std::size_t unit = 0; unit < ways.size(); ++unit) {
      const Way& taken = classes[i].ways[ways[unit]];
      const std::size_t at = classes[i].units[unit];
      options.recompute.units[at].parts = taken.remade;
      options.placement.activation[at] = taken.output;
      options.placement.saved[at].assign(model_.units[at].saved_parts.size(), taken.parts);
    }
  }
  if (!options.recompute.any()) options.recompute.units.clear();
  return options;
}

std::vector<ChainUnit> ActivationChoice::chain(const schedule::StepOptions& from) const {
  std::vector<ChainUnit> chain = chain_of(model_, live_microbatches(model_, from));
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const schedule::UnitFootprint& footprint = model_.units[i + 1];
    const schedule::PartMask all = schedule::all_parts(footprint.saved_parts);
    chain[i].forward_s = footprint.is_head ? 0 : costs_.remake_s(as_id(i + 1), all, true);
  }
  return chain;
}

std::optional<schedule::StepOptions> ActivationChoice::by_segments(
    const schedule::StepOptions& from, std::uint64_t device_bytes) const {
  const std::vector<ChainUnit> units = chain(from);
  if (units.empty()) return std::nullopt;
  const Place place = config_.memory.place.activation;
  if (place != Place::kAuto && place != Place::kDevice) return std::nullopt;
  const auto runs = least_recomputation(units, device_bytes, kChainSlots);
  if (!runs) return std::nullopt;
  schedule::StepOptions options = from;
  options.placement.activation.assign(model_.units.size(), Tier::kDevice);
  options.placement.saved.clear();
  options.recompute = recompute_chain(model_, *runs);
  return options;
}

std::uint64_t ActivationChoice::segment_bytes(const schedule::StepOptions& of) const {
  const std::vector<ChainUnit> units = chain(of);
  if (units.empty()) return 0;
  std::vector<ChainRuns> runs(units.size());
  for (std::size_t i = 0; i < units.size() && !of.recompute.units.empty(); ++i) {
    const schedule::UnitRecompute& unit = of.recompute.units[i + 1];
    runs[i] = {unit.output_run, unit.parts == 0 ? 0 : unit.parts_run};
  }
  return chain_peak_bytes(units, runs);
}

}  // namespace sluice::planner
