#include "engine/planner/candidates.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/units.hpp"
#include "engine/planner/spill_choice.hpp"

namespace sluice::planner {
namespace {

using Place = config::Config::Place;

// Of each kind: the tier of its first units, and of the others. quarters: how many quarters of the
// elements are `first`.
struct KindPlace {
  Tier first = Tier::kDevice;
  Tier rest = Tier::kDevice;
  int quarters = 4;
};

struct Rung {
  KindPlace weight, gradient, optimizer;
  KindPlace activation = {};
};

constexpr KindPlace whole(Tier tier) {
  return {tier, tier, 4};
}
constexpr KindPlace kD = whole(Tier::kDevice);
constexpr KindPlace kP = whole(Tier::kPinned);
constexpr KindPlace kS = whole(Tier::kStorage);
constexpr KindPlace pinned_quarters(int quarters) {
  return {Tier::kPinned, Tier::kStorage, quarters};
}

// Fastest first: what is touched most often leaves the device last, and storage is filled last.
const std::vector<Rung>& ladder() {
  static const std::vector<Rung> rungs{
      {kD, kD, kD},
      {kD, kD, kP},
      {kD, kP, kP},
      {kP, kP, kP},
      {kP, kP, pinned_quarters(3)},
      {kP, kP, pinned_quarters(2)},
      {kP, kP, pinned_quarters(1)},
      {kP, kP, kS},
      {kD, kD, kS},
      {kD, kP, kS},
      {kP, kS, kS},
      {kS, kP, kS},
      {kS, kS, kS},
      {kD, kS, kS},
  };
  return rungs;
}

// Where activations go when the device cannot hold them: a few placements that between them need
// least of each tier, so that few have to be compiled before a configuration is refused. Of what
// goes to both lower tiers, the first units wait longest, so theirs are stored.
const std::vector<Rung>& spilling_ladder() {
  static const std::vector<Rung> rungs{
      {kD, kD, kD, kP}, {kP, kP, kP, kP},
      {kP, kP, kS, kP}, {kP, kP, kS, {Tier::kStorage, Tier::kPinned, 2}},
      {kS, kS, kS, kP}, {kD, kD, kS, kS},
      {kP, kP, kS, kS}, {kS, kS, kS, kS},
  };
  return rungs;
}

void apply_fixed(Place wanted, KindPlace& place) {
  if (wanted == Place::kAuto) return;
  place = whole(static_cast<Tier>(static_cast<int>(wanted) - static_cast<int>(Place::kDevice)));
}

bool same(const KindPlace& a, const KindPlace& b) {
  return a.first == b.first && a.rest == b.rest && a.quarters == b.quarters;
}

bool possible(const Rung& rung) {
  return rung.optimizer.first != Tier::kDevice ||
         (rung.weight.first == Tier::kDevice && rung.gradient.first == Tier::kDevice);
}

std::vector<Rung> rungs_for(const config::Config& config) {
  const auto& place = config.memory.place;
  std::vector<Rung> wanted = ladder();
  if (place.activation == Place::kAuto) {
    wanted.insert(wanted.end(), spilling_ladder().begin(), spilling_ladder().end());
  }
  std::vector<Rung> rungs;
  for (Rung rung : wanted) {
    apply_fixed(place.weight, rung.weight);
    apply_fixed(place.gradient, rung.gradient);
    apply_fixed(place.optimizer, rung.optimizer);
    apply_fixed(place.activation, rung.activation);
    if (!possible(rung)) continue;
    const bool known = std::any_of(rungs.begin(), rungs.end(), [&](const Rung& other) {
      return same(other.weight, rung.weight) && same(other.gradient, rung.gradient) &&
             same(other.optimizer, rung.optimizer) && same(other.activation, rung.activation);
    });
    if (!known) rungs.push_back(rung);
  }
  return rungs;
}

// Units in order until their elements reach the share.
std::vector<Tier> spread(const KindPlace& place, const schedule::StepModel& model) {
  std::uint64_t total = 0;
  for (const schedule::UnitFootprint& unit : model.units) total += unit.elems;
  const std::uint64_t share = total / 4 * static_cast<std::uint64_t>(place.quarters);
  std::vector<Tier> tiers;
  std::uint64_t seen = 0;
  for (const schedule::UnitFootprint& unit : model.units) {
    seen += unit.elems;
    const bool first = place.quarters == 4 || seen <= share;
    tiers.push_back(first ? place.first : place.rest);
  }
  return tiers;
}

// The same for activations, by number of units.
std::vector<Tier> spread_activations(const KindPlace& place, std::size_t units) {
  const std::size_t first = ceil_div(units * static_cast<std::size_t>(place.quarters), 4);
  std::vector<Tier> tiers(units, place.rest);
  std::fill_n(tiers.begin(), first, place.first);
  return tiers;
}

bool on_device(const std::vector<Tier>& tiers) {
  return std::all_of(tiers.begin(), tiers.end(), [](Tier tier) { return tier == Tier::kDevice; });
}

// 256 KiB of fp32 state.
constexpr std::uint64_t kLeastPieceElems = 65536;
// Pieces of 8-bit moments of fewer elements would begin inside a page of storage.
constexpr std::uint64_t kLeastBlock8PieceElems = 131072;
static_assert(bytes_of(DType::kBlock8, kLeastBlock8PieceElems) % 4096 == 0);
// Of a model: each is a dozen instructions of a step, and planning takes as long as there are many.
constexpr std::uint64_t kMostPieces = 32768;

// The least power of two from `piece` on that cuts the model into few enough.
std::uint64_t few_pieces(const schedule::StepModel& model, std::uint64_t piece,
                         std::uint64_t most = kMostPieces) {
  std::uint64_t total = 0;
  for (const schedule::UnitFootprint& unit : model.units) total += unit.elems;
  while (total / piece > most) piece *= 2;
  return piece;
}

// Near a sixteenth of the largest unit, 1 to 4 MiB of fp32 state but for the largest models: enough
// pieces to overlap, and transfers long enough that a storage device is near its bandwidth with few
// of them.
std::uint64_t usual_piece_elems(const schedule::StepModel& model) {
  std::uint64_t largest = 0;
  for (const schedule::UnitFootprint& unit : model.units) largest = std::max(largest, unit.elems);
  std::uint64_t piece = 4 * kLeastPieceElems;
  while (piece < 16 * kLeastPieceElems && piece * 16 < largest) piece *= 2;
  return few_pieces(model, piece);
}

// Where memory is short.
std::uint64_t small_piece_elems(const schedule::StepModel& model) {
  const std::uint64_t least =
      model.optimizer.moments == DType::kBlock8 ? kLeastBlock8PieceElems : kLeastPieceElems;
  return few_pieces(model, std::max(least, usual_piece_elems(model) / 4));
}

// Pieces of an update that storage feeds: of 2 MiB of fp32 state where memory allows it, as many in
// its ring, and so many of a model at most, for the time it takes to plan.
constexpr std::uint64_t kUpdatePieceElems = 8 * kLeastPieceElems;
constexpr std::uint64_t kUpdateRingPieces = 12;
constexpr std::uint64_t kMostUpdatePieces = 8192;

std::uint64_t optimizer_state_bytes(const schedule::StepModel& model, std::size_t unit, StateKind kind) {
  const kernels::StateLayout layout = kernels::state_layout(model.optimizer, kind);
  const schedule::UnitFootprint& footprint = model.units[unit];
  switch (layout.extent) {
    case kernels::StateExtent::kAbsent:
      return 0;
    case kernels::StateExtent::kPerElement:
      return bytes_of(layout.dtype, footprint.elems);
    case kernels::StateExtent::kPerTensor:
      return bytes_of(layout.dtype, footprint.tensor_state_elems);
  }
  return 0;
}

// "auto": what needs the least memory.
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

// Where windows and arena share, either order may be the more frugal.
void add_orders(const config::Config& config, CandidateGroup group, std::vector<CandidateGroup>& groups) {
  CandidateGroup by_unit = group;
  for (schedule::StepOptions& options : by_unit) options.order = schedule::ComputeOrder::kUnit;
  groups.push_back(std::move(group));
  const bool either = config.train.order == config::Config::Order::kAuto && config.train.accumulate > 1;
  if (either) groups.push_back(std::move(by_unit));
}

}  // namespace

bool shares_device(const CandidateGroup& group) {
  return group.front().shares_device;
}

std::vector<CandidateGroup> plan_candidates(const config::Config& config, const schedule::StepModel& model) {
  std::uint64_t all_slots = 0;
  for (const schedule::UnitFootprint& unit : model.units) {
    all_slots += ceil_div(unit.elems * dtype_bytes(model.dtype), config.memory.chunk_bytes);
  }
  std::vector<bool> recompute_choices;
  if (config.recompute.policy != config::Config::Recompute::kUnit) recompute_choices.push_back(false);
  if (config.recompute.policy != config::Config::Recompute::kNone) recompute_choices.push_back(true);

  std::vector<CandidateGroup> groups;
  std::vector<CandidateGroup> sharing;
  for (const Rung& rung : rungs_for(config)) {
    CandidateGroup candidates;
    CandidateGroup shared;
    schedule::StepOptions base;
    base.microbatches = static_cast<std::int32_t>(config.train.accumulate);
    base.order = config.train.order == config::Config::Order::kUnit ? schedule::ComputeOrder::kUnit
                                                            : schedule::ComputeOrder::kMicrobatch;
    base.update = update_placement(config.optimizer.placement);
    base.chunk_bytes = config.memory.chunk_bytes;
    base.durable = config.checkpoint.mode == config::Config::CheckpointMode::kDurable;
    base.piece_elems = usual_piece_elems(model);
    base.placement = {spread(rung.weight, model), spread(rung.gradient, model),
                      spread(rung.optimizer, model),
                      spread_activations(rung.activation, model.units.size())};
    base.placement.saved = saved_places(config, model, base.placement.activation);
    for (const bool recompute : recompute_choices) {
      base.recompute = recompute;
      enum class Pieces { kUsual, kSmall, kSmallOneByOne };
      const auto add = [&](std::int64_t prefetch, std::uint64_t slots, Pieces pieces) {
        schedule::StepOptions options = base;
        options.prefetch = static_cast<std::int32_t>(prefetch);
        options.weight_slots = slots;
        if (pieces != Pieces::kUsual) options.piece_elems = small_piece_elems(model);
        if (pieces == Pieces::kSmallOneByOne) options.stream_lookahead = 0;
        candidates.push_back(options);
        const bool usual = prefetch == config.memory.prefetch && slots == 0;
        if (!usual && (prefetch > 0 || pieces != Pieces::kSmallOneByOne)) return;
        options.shares_device = true;
        shared.push_back(std::move(options));
      };
      const std::int64_t prefetch = config.memory.prefetch;
      const bool streamed = rung.weight.first != Tier::kDevice;
      const bool fetched = streamed || spills_activations(base);
      if (streamed) add(prefetch, all_slots, Pieces::kUsual);
      add(prefetch, 0, Pieces::kUsual);
      for (std::int64_t fewer = prefetch / 2; fetched && fewer > 0; fewer /= 2) {
        add(fewer, 0, Pieces::kUsual);
      }
      const std::int64_t least = std::min<std::int64_t>(prefetch, 1);
      if (!same(rung.optimizer, kD)) add(least, 0, Pieces::kSmall);
      if (fetched) add(least, 0, Pieces::kSmallOneByOne);
      add(0, 0, Pieces::kSmallOneByOne);
      // Which is the more frugal depends: to make it all again takes it all at once, while of what
      // is spilled each half of backward has its own.
      if (spills_activations(base)) {
        groups.push_back(std::exchange(candidates, {}));
        add_orders(config, std::exchange(shared, {}), sharing);
      }
    }
    if (candidates.empty()) continue;
    groups.push_back(std::move(candidates));
    add_orders(config, std::move(shared), sharing);
  }
  std::move(sharing.begin(), sharing.end(), std::back_inserter(groups));
  return groups;
}

// In a ring of three pieces of 256 K elements (as many bytes) a piece's memory is read into again
// only when all of its writes have ended, and the storage device idles meanwhile: steps took up to
// a third longer.
std::vector<schedule::StepOptions> update_piece_variants(const schedule::StepModel& model, const schedule::StepOptions& options) {
  const std::vector<Tier>& homes = options.placement.optimizer;
  const bool streams = std::find(homes.begin(), homes.end(), Tier::kStorage) != homes.end();
  // Whole tensors are updated unit by unit, whatever the pieces.
  if (kernels::needs_whole_tensors(model.optimizer)) return {};
  if (!streams || options.stream_lookahead == 0) return {};
  std::vector<schedule::StepOptions> variants;
  const auto add = [&](std::uint64_t elems, std::uint64_t ring) {
    schedule::StepOptions variant = options;
    variant.update_piece_elems = elems;
    variant.update_lookahead =
        std::max(options.stream_lookahead, static_cast<std::int32_t>(ring) - 1);
    variants.push_back(std::move(variant));
  };
  const std::uint64_t least =
      model.optimizer.moments == DType::kBlock8 ? kLeastBlock8PieceElems : kLeastPieceElems;
  const std::uint64_t small =
      std::min(few_pieces(model, least, kMostUpdatePieces), options.piece_elems);
  // Twice as many where there is room: lanes retire in order, and on a disk of several GB/s twelve
  // were read, updated and written in turns (docs/results).
  if (kUpdatePieceElems > small) add(kUpdatePieceElems, 2 * kUpdateRingPieces);
  for (std::uint64_t elems = kUpdatePieceElems; elems > small; elems /= 2) {
    add(elems, kUpdateRingPieces);
  }
  // In as many bytes as three of the others.
  add(small, std::min(kUpdateRingPieces, options.piece_elems * 3 / small));
  return variants;
}

std::vector<CandidateGroup> order_variants(const config::Config& config, const CandidateGroup& group) {
  // One micro-batch has no order.
  if (config.train.order != config::Config::Order::kAuto || config.train.accumulate < 2) return {};
  // A group that spills is of one kind; its like of the other kind is another group.
  const bool either =
      spills_activations(group.front()) && config.recompute.policy == config::Config::Recompute::kAuto;
  std::vector<CandidateGroup> variants;
  for (const bool recompute : {false, true}) {
    CandidateGroup variant;
    for (schedule::StepOptions options : group) {
      if (either) options.recompute = recompute;
      if (options.recompute != recompute) continue;
      options.order = schedule::ComputeOrder::kUnit;
      variant.push_back(std::move(options));
    }
    if (!variant.empty()) variants.push_back(std::move(variant));
  }
  return variants;
}

bool spills_activations(const schedule::StepOptions& options) {
  const std::vector<std::vector<Tier>>& saved = options.placement.saved;
  return !on_device(options.placement.activation) ||
         !std::all_of(saved.begin(), saved.end(), on_device);
}

std::vector<schedule::StepOptions> spilling_variants(const config::Config& config, const schedule::StepOptions& options) {
  if (config.memory.place.activation != Place::kAuto) return {};
  const bool spills = spills_activations(options);
  std::vector<schedule::StepOptions> variants;
  const auto add = [&](bool recompute, schedule::ComputeOrder order) {
    variants.push_back(options);
    variants.back().recompute = recompute;
    variants.back().order = order;
  };
  const bool may_keep = config.recompute.policy != config::Config::Recompute::kUnit;
  if (may_keep && (spills || options.recompute)) add(false, options.order);
  if (spills && options.recompute) add(true, options.order);
  const bool may_reorder = config.train.order == config::Config::Order::kAuto && options.microbatches > 1 &&
                           !on_device(options.placement.weight);
  if (may_reorder) add(options.recompute, schedule::ComputeOrder::kUnit);
  return variants;
}

std::vector<schedule::StepOptions> update_variants(const config::Config& config, const schedule::StepOptions& options) {
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

std::array<std::uint64_t, kTierCount> home_bytes(const schedule::StepModel& model,
                                                 const schedule::StepOptions& options) {
  std::array<std::uint64_t, kTierCount> bytes{};
  const std::uint64_t weight = dtype_bytes(model.dtype);
  const std::uint64_t gradient = dtype_bytes(schedule::accumulator_dtype(model, options.microbatches));
  const std::uint64_t versions = options.update == schedule::UpdatePlacement::kSpeculative ? 2 : 1;
  for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
    const std::uint64_t elems = model.units[unit].elems;
    const auto add = [&](const std::vector<Tier>& tiers, std::uint64_t elem_bytes) {
      bytes[static_cast<std::size_t>(tiers[unit])] += elems * elem_bytes;
    };
    add(options.placement.weight, versions * weight);
    add(options.placement.gradient, gradient);
    const auto tier = static_cast<std::size_t>(options.placement.optimizer[unit]);
    for (const StateKind kind : kOptimizerKinds) {
      bytes[tier] += versions * optimizer_state_bytes(model, unit, kind);
    }
  }
  return bytes;
}

}  // namespace sluice::planner
