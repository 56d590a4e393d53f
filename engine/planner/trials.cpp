// Staging takes as many pieces in a coarse schedule as in an exact one, since the depth of a ring
// does not depend on the size of its pieces. So before a coarse schedule is packed, its staging
// pieces shrink to their exact size, and the packing shows the exact need.
#include "engine/planner/trials.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/units.hpp"
#include "engine/runtime/state_store.hpp"
#include "engine/schedule/compile/generate.hpp"
#include "engine/schedule/compile/link.hpp"
#include "engine/schedule/compile/pack.hpp"

namespace sluice::planner {
namespace {

// A unit has at least this many coarse pieces, so that its rings fill.
constexpr std::uint64_t kCoarsePiecesPerUnit = 6;

// Options with equal keys make equal schedules.
std::string key_of(const schedule::StepOptions& options) {
  std::string key;
  const auto add = [&](auto value) {
    key.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  add(options.microbatches);
  add(options.order);
  add(options.update);
  for (const schedule::UnitRecompute& unit : options.recompute.units) {
    add(unit.parts);
    add(unit.drops_output);
  }
  add(options.piece_elems);
  add(options.prefetch);
  add(options.weight_slots);
  add(options.stream_lookahead);
  add(options.update_piece_elems);
  add(options.update_lookahead);
  add(options.carried_units);
  add(options.shares_device);
  const auto add_all = [&](const std::vector<Tier>& tiers) {
    for (const Tier tier : tiers) add(tier);
    key.push_back('|');
  };
  const schedule::Placement& placement = options.placement;
  for (const auto* tiers :
       {&placement.weight, &placement.gradient, &placement.optimizer, &placement.activation}) {
    add_all(*tiers);
  }
  for (const std::vector<Tier>& tiers : placement.saved) add_all(tiers);
  return key;
}

std::uint64_t coarse_piece_elems(const schedule::StepModel& model, std::uint64_t piece_elems) {
  std::uint64_t largest = 0;
  for (const schedule::UnitFootprint& unit : model.units) largest = std::max(largest, unit.elems);
  return std::max(piece_elems, round_up(largest / kCoarsePiecesPerUnit, kLawBlockElems));
}

// Pieces of a ring. In the order "unit" all pieces of a gradient's sum wait together for the next
// micro-batch, so they are none.
bool is_staging(const schedule::StepOptions& options, const schedule::Buffer& buffer) {
  const bool waits = options.order == schedule::ComputeOrder::kUnit && options.microbatches > 1 &&
                     buffer.kind == StateKind::kGradient && buffer.dtype == DType::kF32;
  return !buffer.persistent && buffer.tier == Tier::kPinned && buffer.chunk >= 0 &&
         buffer.role == schedule::BufferRole::kState && !buffer.per_tensor && !waits;
}

}  // namespace

const Trial& Trials::coarse(const schedule::StepOptions& options) {
  const auto [found, fresh] = known_.try_emplace(key_of(options));
  if (fresh) found->second = measure(options, Wanted::kAll);
  return found->second;
}

const TierBytes& Trials::coarse_need(const schedule::StepOptions& options) {
  const auto [found, fresh] = known_needs_.try_emplace(key_of(options));
  if (fresh) found->second = measure(options, Wanted::kNeed);
  return found->second.need;
}

Trial Trials::measure(const schedule::StepOptions& options, Wanted wanted) const {
  const bool all = wanted == Wanted::kAll;
  schedule::StepOptions coarse = options;
  coarse.piece_elems = coarse_piece_elems(model_, options.piece_elems);
  // The pieces of the update are settled last (Search::refine).
  coarse.update_piece_elems = 0;
  const auto trial = [&](std::int32_t microbatches) {
    coarse.microbatches = microbatches;
    schedule::Schedule training = schedule::generate(model_, coarse, schedule::StepKind::kTraining);
    schedule::link(training);
    for (schedule::Buffer& buffer : training.buffers) {
      const std::uint64_t exact = bytes_of(buffer.dtype, options.piece_elems);
      if (is_staging(options, buffer)) buffer.bytes = std::min(buffer.bytes, exact);
    }
    schedule::pack(training, kTensorAlignmentBytes,
                   all ? packing::PackingEffort::kCoarse : packing::PackingEffort::kQuick);
    const std::array<const schedule::Schedule*, 1> schedules{&training};
    runtime::MemoryNeed need = runtime::memory_need(schedules, runtime::StateStore::kWindowBytes);
    need.log_bytes = log_bytes_;
    Trial measured{need.peak_bytes(), 0};
    if (!all) return measured;
    costs_.apply(training);
    measured.seconds = schedule::simulate(training, costs_.simulation_model()).total_s;
    return measured;
  };
  constexpr std::int32_t kAlike = 3;
  if (options.microbatches <= kAlike + 1) return trial(options.microbatches);
  Trial whole = trial(kAlike + 1);
  const auto missing = static_cast<std::uint64_t>(options.microbatches - kAlike - 1);
  if (!all && options.order == schedule::ComputeOrder::kMicrobatch) {
    // Tokens and loss of each micro-batch have homes of their own.
    const std::uint64_t each = round_up(model_.token_bytes, schedule::kDirectAlignmentBytes) +
                               schedule::kDirectAlignmentBytes;
    whole.need[static_cast<std::size_t>(Tier::kPinned)] += missing * each;
    return whole;
  }
  const Trial fewer = trial(kAlike);
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    // Activations of one micro-batch at a time do not grow with their number.
    const bool grows =
        options.order == schedule::ComputeOrder::kUnit || static_cast<Tier>(tier) != Tier::kDevice;
    if (grows && whole.need[tier] > fewer.need[tier]) {
      whole.need[tier] += missing * (whole.need[tier] - fewer.need[tier]);
    }
  }
  whole.seconds += static_cast<double>(missing) * (whole.seconds - fewer.seconds);
  return whole;
}

Trial Trials::training(const schedule::StepOptions& options) const {
  schedule::Schedule training = schedule::compile(model_, options, schedule::StepKind::kTraining);
  const std::array<const schedule::Schedule*, 1> schedules{&training};
  runtime::MemoryNeed need = runtime::memory_need(schedules, runtime::StateStore::kWindowBytes);
  need.log_bytes = log_bytes_;
  costs_.apply(training);
  return {need.peak_bytes(), schedule::simulate(training, costs_.simulation_model()).total_s};
}

Compiled Trials::exact(const schedule::StepOptions& options) const {
  Compiled compiled;
  compiled.options = options;
  compiled.schedules = schedule::compile_all(model_, options);
  compiled.need =
      runtime::memory_need(compiled.schedules.of(options), runtime::StateStore::kWindowBytes);
  compiled.need.log_bytes = log_bytes_;
  return compiled;
}

void Trials::simulate(Compiled& compiled) const {
  schedule::Schedule& training = compiled.schedules[schedule::StepKind::kTraining];
  costs_.apply(training);
  compiled.simulation = schedule::simulate(training, costs_.simulation_model());
}

}  // namespace sluice::planner
