// A linear program for each shape of a plan.
//
// The variables are the share of each kind of bytes on each tier, and the durations of three
// phases: forward, backward, and an update of its own. Rows say that shares sum to one, that
// each tier's bytes fit, and that no lane has more work in a phase than the phase is long. An
// update that the shape places in forward or backward adds its work to that phase. The device's
// update needs the weights and gradients there.
//
// Windows keep weights on the device for some passes, which saves as many bytes of transfers as
// weights with a home there would, and takes as much memory; `cached` is their share. Only those
// with a home on storage save reads as well, so each home has its own share. Where ranks keep shards
// of weights, windows save gathers too, even those of shards on the device.
//
// Where recomputation is free, each operation of a pass may be repeated for a share of the units,
// in the time that it takes. A part then needs no place.
//
// Seconds are counted in passes of the step and bytes in the model's state, so that the numbers of
// the program are near one for models of every size, as its tolerances expect.
#include "engine/planner/bound/relaxation.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "engine/planner/bound/linear_program.hpp"
#include "engine/planner/choice/candidates.hpp"
#include "engine/planner/choice/rank_settings.hpp"
#include "engine/planner/choice/recompute_choice.hpp"
#include "engine/planner/price/rank_traffic.hpp"
#include "engine/schedule/compile/rank_share.hpp"

namespace sluice::planner {
namespace {

using Place = config::Config::Place;

// Columns. Kinds have one for each tier.
enum Column : std::size_t {
  kWeight = 0,
  kGradient = 3,
  kOptimizer = 6,
  kSaved = 9,
  kOutputs = 12,
  kCached = 15,  // with a home in pinned memory
  kCachedStored = 16,
  kCachedShards = 17,  // with shards on the devices
  kPhases = 18,        // forward, backward, update
  // Shares of values that are recomputed: parts by operation, and outputs.
  kRemadeParts = 21,
  kRemadeOutputs = kRemadeParts + 8,
  kColumns,
};
constexpr std::size_t kMostRemadeParts = kRemadeOutputs - kRemadeParts;
enum Phase : std::size_t { kForwardPhase, kBackwardPhase, kUpdatePhase, kPhaseCount };
constexpr std::size_t kDevice = 0;
constexpr std::size_t kPinned = 1;
constexpr std::size_t kStorage = 2;

// A sum of columns and a constant: seconds of work or bytes.
struct Sum {
  std::vector<double> columns = std::vector<double>(kColumns);
  double constant = 0;

  void add(std::size_t column, double times) { columns[column] += times; }
  // times * (1 - column)
  void add_rest(std::size_t column, double times) {
    constant += times;
    columns[column] -= times;
  }
  void scale(double times) {
    constant *= times;
    for (double& column : columns) column *= times;
  }
  void add(const Sum& other, double times) {
    constant += times * other.constant;
    for (std::size_t i = 0; i < kColumns; ++i) columns[i] += times * other.columns[i];
  }
};

// Seconds of each resource in one phase.
struct PhaseWork {
  Sum compute, upload, download, optimizer, read, write, comm;

  static constexpr std::array<Sum PhaseWork::*, 7> lanes() {
    return {&PhaseWork::compute, &PhaseWork::upload, &PhaseWork::download, &PhaseWork::optimizer,
            &PhaseWork::read,    &PhaseWork::write,  &PhaseWork::comm};
  }
  void add(const PhaseWork& other) {
    for (Sum PhaseWork::*const lane : lanes()) (this->*lane).add(other.*lane, 1);
  }
};

struct ModelBytes {
  double weight = 0, gradient = 0, optimizer = 0;  // of the rank's homes
  double windows = 0;                              // of the weights of all units
  double updated = 0;                              // of the weights that the rank updates
  double applied = 0;                              // of the gradients that it applies
  double gradient_part = 0;       // of one micro-batch's gradient, as far as it reaches the home
  double saved = 0, outputs = 0;  // of one micro-batch, without the head
  bool reads_weight = false;
};

// Only microbatches, fold_groups and recompute of the options count.
ModelBytes model_bytes(const schedule::StepModel& model, const schedule::StepOptions& options) {
  ModelBytes bytes;
  const DType accumulator = schedule::gradient_home_dtype(model, options);
  const schedule::Recomputation& recompute = options.recompute;
  for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
    const schedule::UnitFootprint& footprint = model.units[unit];
    const auto at = static_cast<std::int32_t>(unit);
    const auto home = [&](StateKind kind) {
      return static_cast<double>(schedule::home_range(model, kind, at).elems());
    };
    bytes.windows += static_cast<double>(footprint.elems * dtype_bytes(model.dtype));
    bytes.weight += home(StateKind::kWeight) * dtype_bytes(model.dtype);
    bytes.gradient += home(StateKind::kGradient) * dtype_bytes(accumulator);
    bytes.gradient_part += home(StateKind::kGradient) * dtype_bytes(model.dtype);
    bytes.updated += home(StateKind::kMaster) * dtype_bytes(model.dtype);
    bytes.applied += home(StateKind::kMaster) * dtype_bytes(accumulator);
    bytes.optimizer += static_cast<double>(optimizer_state_bytes(model, unit));
    if (footprint.is_head) continue;
    for (std::size_t part = 0; part < footprint.saved_parts.size(); ++part) {
      if (recompute.remakes(at, part)) continue;
      bytes.saved += static_cast<double>(footprint.saved_parts[part].bytes);
    }
    if (!recompute.drops_output(at)) bytes.outputs += static_cast<double>(footprint.output_bytes);
  }
  bytes.reads_weight = kernels::reads_weight(model.optimizer);
  return bytes;
}

// The moves of a rank's sums of groups of micro-batches to a lower tier and back (partial_sums.cpp).
// All but the rank's last micro-batch are added on the host, and each sum that waits at the end
// comes up once. Reductions are left out, and so are reads of sums that a later micro-batch is
// added to.
void add_partials(PhaseWork& backward, const schedule::StepModel& model, const StepRates& rates,
                  const schedule::StepOptions& options) {
  const std::int32_t sums = schedule::partial_sums_at_once(model, options);
  const Tier tier = options.placement.partial_of(0);
  if (sums == 0 || tier == Tier::kDevice) return;
  double elems = static_cast<double>(model.tied_elems);
  for (const schedule::UnitFootprint& unit : model.units) elems += static_cast<double>(unit.elems);
  const double earlier = schedule::own_microbatch_count(model, options) - 1;
  const double sum_bytes = elems * sizeof(float);
  backward.download.constant += earlier * elems * dtype_bytes(model.dtype) * rates.copy_s;
  backward.optimizer.constant += earlier * rates.host.accumulate_s;
  backward.upload.constant += sums * sum_bytes * rates.copy_s;
  if (tier != Tier::kStorage) return;
  backward.write.constant += earlier * sum_bytes * rates.storage_write_s;
  backward.read.constant += sums * sum_bytes * rates.storage_read_s;
}

// remade: the share of the kind that has no place, by column.
void add_shares(LinearProgram& program, std::size_t kind, Place place,
                const std::vector<double>& remade = std::vector<double>(kColumns)) {
  std::vector<double> all = remade;
  for (std::size_t tier = 0; tier < kTierCount; ++tier) all[kind + tier] = 1;
  program.equals(all, 1);
  if (place == Place::kAuto) return;
  std::vector<double> only = remade;
  only[kind + static_cast<std::size_t>(place) - static_cast<std::size_t>(Place::kDevice)] = 1;
  program.equals(only, 1);
}

// The sum takes no longer than the phases, of which each second does `times` seconds of work.
void add_at_most(LinearProgram& program, const Sum& sum, const std::vector<std::size_t>& phases,
                 double times) {
  std::vector<double> row = sum.columns;
  for (const std::size_t phase : phases) row[kPhases + phase] -= times;
  program.at_most(std::move(row), -sum.constant);
}

}  // namespace

Relaxation::Relaxation(const config::Config& config, const schedule::StepModel& model,
                       CostModel& costs)
    : config_(config),
      model_(model),
      costs_(costs),
      rates_(costs.rates()),
      machine_(costs.simulation_model()) {
  if (config.recompute.policy == config::Config::Recompute::kAuto) list_remade();
}

// The cheapest operations first. Beyond the columns, the rest counts at the least rate, so the time
// stays a bound.
void Relaxation::list_remade() {
  schedule::StepOptions one_each;
  one_each.microbatches = model_.view.ranks;
  const ModelBytes bytes = model_bytes(model_, one_each);
  double output_rate = std::numeric_limits<double>::infinity();  // seconds per share
  for (const RemakeClass& of : remake_classes(model_, costs_)) {
    const auto units = static_cast<double>(of.units.size());
    const std::vector<Remake>& remakes = of.remakes;
    for (std::size_t at = 1; at < remakes.size() && bytes.saved > 0; ++at) {
      const auto freed = static_cast<double>(remakes[at].bytes - remakes[at - 1].bytes);
      remade_parts_.push_back(
          {units * freed / bytes.saved, units * (remakes[at].seconds - remakes[at - 1].seconds)});
    }
    const std::uint64_t output_bytes = model_.units[of.units.front()].output_bytes;
    if (remakes.size() < 2 || output_bytes == 0) continue;
    const double share = units * static_cast<double>(output_bytes) / bytes.outputs;
    const double more_s = units * std::max(of.output_s, 0.0);
    output_rate = std::min(output_rate, more_s / share);
    remade_outputs_.share += share;
  }
  remade_outputs_.seconds = remade_outputs_.share > 0 ? output_rate * remade_outputs_.share : 0;
  const auto rate = [](const Remade& of) { return of.seconds / of.share; };
  std::erase_if(remade_parts_, [](const Remade& of) { return of.share <= 0; });
  std::stable_sort(remade_parts_.begin(), remade_parts_.end(),
                   [&](const Remade& a, const Remade& b) { return rate(a) < rate(b); });
  std::vector<Remade> merged;
  for (const Remade& next : remade_parts_) {
    const bool same = !merged.empty() && (rate(next) <= rate(merged.back()) * (1 + 1e-9) ||
                                          merged.size() == kMostRemadeParts);
    if (!same) {
      merged.push_back(next);
      continue;
    }
    const double least = rate(merged.back());
    merged.back().share += next.share;
    merged.back().seconds = least * merged.back().share;
  }
  remade_parts_ = std::move(merged);
}

// NOLINTNEXTLINE(readability-function-size): the search that replaces it is being written
std::optional<Relaxed> Relaxation::solve(const PlanShape& shape,
                                         const config::Config::Places& place,
                                         const TierBytes& budgets, const TierBytes& extra) const {
  schedule::StepOptions step;
  set_sums(config_, step);
  step.recompute = shape.recompute;
  schedule::StepOptions placed = step;  // with the places that the shape fixes
  placed.order = shape.order;
  place_partials(placed, shape.partial, model_);
  const TierBytes partials = partial_bytes(model_, placed);
  const ModelBytes bytes = model_bytes(model_, step);
  const RankTraffic traffic = rank_traffic(model_, step, costs_.links());
  const auto microbatches = static_cast<double>(schedule::own_microbatch_count(model_, step));
  const bool by_unit = shape.order == schedule::ComputeOrder::kUnit;
  const double fetches = by_unit ? 1 : microbatches;
  const double live = by_unit ? microbatches : 1;
  const double saved = bytes.saved;
  const bool sums = step.microbatches > 1;

  std::array<PhaseWork, kPhaseCount> work;
  PhaseWork& forward = work[kForwardPhase];
  PhaseWork& backward = work[kBackwardPhase];
  forward.compute.constant = microbatches * rates_.forward_s;
  backward.compute.constant =
      microbatches * (rates_.backward_s + costs_.recompute_s(shape.recompute));
  std::vector<double> parts_without_place(kColumns);
  std::vector<double> outputs_without_place(kColumns);
  if (shape.recompute_is_free) {
    for (std::size_t i = 0; i < remade_parts_.size(); ++i) {
      parts_without_place[kRemadeParts + i] = remade_parts_[i].share;
      backward.compute.add(kRemadeParts + i, microbatches * remade_parts_[i].seconds);
    }
    outputs_without_place[kRemadeOutputs] = remade_outputs_.share;
    backward.compute.add(kRemadeOutputs, microbatches * remade_outputs_.seconds);
  }
  for (PhaseWork* phase : {&forward, &backward}) {
    const double moved_s = fetches * bytes.weight;
    phase->upload.add_rest(kWeight + kDevice, moved_s * rates_.copy_s);
    phase->upload.add(kCached, -moved_s * rates_.copy_s);
    phase->upload.add(kCachedStored, -moved_s * rates_.copy_s);
    phase->read.add(kWeight + kStorage, moved_s * rates_.storage_read_s);
    phase->read.add(kCachedStored, -moved_s * rates_.storage_read_s);
    const double gathers_s = fetches * traffic.weight_fetch * rates_.comm_s;
    phase->comm.constant = gathers_s;
    // A window that stays was gathered for the first forward pass.
    const double least_s = phase == &forward ? traffic.weight_fetch * rates_.comm_s : 0;
    for (const std::size_t cached : {kCached, kCachedStored, kCachedShards}) {
      phase->comm.add(cached, least_s - gathers_s);
    }
  }
  // Activations that leave the device.
  for (const auto& [kind, of] : {std::pair(kSaved, saved), std::pair(kOutputs, bytes.outputs)}) {
    for (const std::size_t tier : {kPinned, kStorage}) {
      forward.download.add(kind + tier, microbatches * of * rates_.copy_s);
      backward.upload.add(kind + tier, microbatches * of * rates_.copy_s);
    }
    forward.write.add(kind + kStorage, microbatches * of * rates_.storage_write_s);
    backward.read.add(kind + kStorage, microbatches * of * rates_.storage_read_s);
  }
  // Gradients.
  const double arrivals = gradient_arrivals(model_, step);
  backward.download.add_rest(kGradient + kDevice, arrivals * bytes.gradient_part * rates_.copy_s);
  backward.comm.constant += (traffic.gradients + traffic.norm) * rates_.comm_s;
  backward.comm.constant += costs_.links().messages_s(model_.view.ranks, traffic.uneven_gradients);
  const double share = owned_share(model_);
  const bool sums_at_home = sums && !schedule::rounds_gradients(model_, step);
  const double sums_made = sums_at_home ? share * step.microbatches : 0;
  backward.compute.add(kGradient + kDevice, sums_made * rates_.device.accumulate_s);
  backward.optimizer.add_rest(kGradient + kDevice,
                              sums_made * rates_.host.accumulate_s + share * rates_.host.norm_s);
  const double rewrites = sums_at_home && !by_unit ? microbatches : 1;
  backward.write.add(kGradient + kStorage, rewrites * bytes.gradient * rates_.storage_write_s);
  backward.read.add(kGradient + kStorage, (rewrites - 1) * bytes.gradient * rates_.storage_read_s);
  add_partials(backward, model_, rates_, placed);
  // The update.
  PhaseWork update;
  const Phase update_phase =
      shape.update == schedule::UpdatePlacement::kAfterBackward ? kUpdatePhase
      : shape.update == schedule::UpdatePlacement::kNextForward ? kForwardPhase
                                                                : kBackwardPhase;
  const double updated = bytes.windows > 0 ? bytes.updated / bytes.windows : 1;
  update.optimizer.add_rest(kOptimizer + kDevice, updated * rates_.host.update_s);
  update.compute.add(kOptimizer + kDevice, updated * rates_.device.update_s);
  update.read.add(kOptimizer + kStorage, bytes.optimizer * rates_.storage_read_s);
  update.read.add(kGradient + kStorage, bytes.applied * rates_.storage_read_s);
  update.write.add(kOptimizer + kStorage, bytes.optimizer * rates_.storage_write_s);
  update.write.add(kWeight + kStorage, bytes.updated * rates_.storage_write_s);
  update.upload.add(kWeight + kDevice, bytes.updated * rates_.copy_s);
  update.upload.add(kOptimizer + kDevice, -bytes.updated * rates_.copy_s);
  update.download.add(kGradient + kDevice, bytes.applied * rates_.copy_s);
  update.download.add(kOptimizer + kDevice, -bytes.applied * rates_.copy_s);
  if (bytes.reads_weight) {
    update.read.add(kWeight + kStorage, bytes.updated * rates_.storage_read_s);
    update.download.add(kWeight + kDevice, bytes.updated * rates_.copy_s);
    update.download.add(kOptimizer + kDevice, -bytes.updated * rates_.copy_s);
  }
  update.comm.constant = traffic.weights * rates_.comm_s;

  const double pass_s = forward.compute.constant + backward.compute.constant;
  const double unit_s = pass_s > 0 ? pass_s : 1;
  for (PhaseWork* of :
       {&work[kForwardPhase], &work[kBackwardPhase], &work[kUpdatePhase], &update}) {
    for (Sum PhaseWork::*const lane : PhaseWork::lanes()) (of->*lane).scale(1 / unit_s);
  }
  const double per_state = 1 / (bytes.weight + bytes.gradient + bytes.optimizer);

  // The bound takes less for granted than the places: values whose next use is near stay on the
  // device whatever their tier is, storage may work on an update before its phase begins, and any
  // updates may be deferred: they run in forward and no state is kept twice.
  enum class For { kBound, kPlaces };
  const auto program_for = [&](std::vector<double> costs, For use) {
    const bool bound = use == For::kBound;
    LinearProgram program(std::move(costs));
    add_shares(program, kWeight, place.weight);
    add_shares(program, kGradient, place.gradient);
    add_shares(program, kOptimizer, place.optimizer);
    const Place activation = bound ? Place::kAuto : place.activation;
    add_shares(program, kSaved, activation, parts_without_place);
    add_shares(program, kOutputs, activation, outputs_without_place);
    for (std::size_t column = kRemadeParts; shape.recompute_is_free && column < kColumns;
         ++column) {
      std::vector<double> row(kColumns);
      row[column] = 1;
      program.at_most(std::move(row), 1);
    }
    for (const std::size_t needed : {kWeight, kGradient}) {
      std::vector<double> row(kColumns);
      row[kOptimizer + kDevice] = 1;
      row[needed + kDevice] = -1;
      program.at_most(std::move(row), 0);
    }
    for (const auto& [cached, home] :
         {std::pair(kCached, kWeight + kPinned), std::pair(kCachedStored, kWeight + kStorage),
          std::pair(kCachedShards, kWeight + kDevice)}) {
      std::vector<double> row(kColumns);
      row[cached] = 1;
      // Weights that lie whole on the device are their own windows.
      const bool is_window = cached == kCachedShards && !model_.view.shards_weights();
      row[home] = is_window ? 0 : -1;
      program.at_most(std::move(row), 0);
    }
    const bool speculates = shape.update == schedule::UpdatePlacement::kSpeculative;
    const double versions = speculates && !bound ? 2 : 1;
    const bool carries = bound && update_phase == kBackwardPhase;
    for (std::size_t tier = 0; tier < kTierCount; ++tier) {
      const double room = (static_cast<double>(budgets[tier]) - static_cast<double>(extra[tier]) -
                           static_cast<double>(partials[tier])) *
                          per_state;
      std::vector<double> row(kColumns);
      row[kWeight + tier] = versions * bytes.weight * per_state;
      row[kGradient + tier] = bytes.gradient * per_state;
      row[kOptimizer + tier] = versions * bytes.optimizer * per_state;
      row[kSaved + tier] = live * saved * per_state;
      row[kOutputs + tier] = live * bytes.outputs * per_state;
      if (tier == kDevice) {
        row[kCached] = row[kCachedStored] = row[kCachedShards] = bytes.windows * per_state;
      }
      program.at_most(std::move(row), room);
    }
    const auto add_storage = [&](const Sum& read, const Sum& write,
                                 const std::vector<std::size_t>& phases) {
      Sum both = read;
      both.add(write, 1);
      for (const auto& [sum, times] :
           {std::pair(&read, 1.0), std::pair(&write, 1.0),
            std::pair(static_cast<const Sum*>(&both), machine_.storage_duplex)}) {
        add_at_most(program, *sum, phases, times);
      }
    };
    Sum reads;
    Sum writes;
    const auto add_lanes = [&](const PhaseWork& of, const std::vector<std::size_t>& phases) {
      for (const Sum* lane : {&of.compute, &of.upload, &of.download, &of.optimizer, &of.comm}) {
        add_at_most(program, *lane, phases, 1);
      }
      if (machine_.cores <= 0) return;
      Sum cores;
      const auto add = [&](const Sum& lane, schedule::Lane kind) {
        cores.add(lane, machine_.cores_used[static_cast<std::size_t>(kind)]);
      };
      add(of.compute, schedule::Lane::kCompute);
      add(of.upload, schedule::Lane::kH2D);
      add(of.download, schedule::Lane::kD2H);
      add(of.optimizer, schedule::Lane::kOptimizer);
      add(of.comm, schedule::Lane::kComm);
      add_at_most(program, cores, phases, machine_.cores);
    };
    PhaseWork passes = update;  // of forward and backward
    for (std::size_t phase = 0; phase < kPhaseCount; ++phase) {
      PhaseWork of = work[phase];
      passes.add(of);
      if (phase == update_phase && !carries) of.add(update);
      add_lanes(of, {phase});
      reads.add(of.read, 1);
      writes.add(of.write, 1);
      if (!bound) add_storage(of.read, of.write, {phase});
    }
    if (carries) {
      add_lanes(passes, {kForwardPhase, kBackwardPhase});
      reads.add(update.read, 1);
      writes.add(update.write, 1);
    }
    if (bound) add_storage(reads, writes, {kForwardPhase, kBackwardPhase, kUpdatePhase});
    return program;
  };

  std::vector<double> time(kColumns);
  for (std::size_t phase = 0; phase < kPhaseCount; ++phase) time[kPhases + phase] = 1;
  const std::optional<LinearProgram::Solution> least = program_for(time, For::kBound).minimum();
  if (!least) return std::nullopt;
  // Of places that are equally fast, those with less work for any lane are better.
  std::array<PhaseWork, kPhaseCount + 1> all;
  std::copy(work.begin(), work.end(), all.begin());
  all.back() = update;
  for (const PhaseWork& of : all) {
    for (Sum PhaseWork::*const lane : PhaseWork::lanes()) {
      for (std::size_t i = 0; i < kColumns; ++i) {
        time[i] += shape.hidden_price * (of.*lane).columns[i];
      }
    }
  }
  const std::optional<LinearProgram::Solution> lean = program_for(time, For::kPlaces).minimum();
  const std::vector<double>& x = lean ? lean->x : least->x;
  const auto shares = [&](std::size_t kind) {
    return TierShares{x[kind + kDevice], x[kind + kPinned], x[kind + kStorage]};
  };
  // Parts with a place of their own are not told apart here, so there is no bound.
  const double seconds = config_.memory.place.saved.empty() ? least->cost * unit_s : 0;
  return Relaxed{seconds,
                 shares(kWeight),
                 shares(kGradient),
                 shares(kOptimizer),
                 shares(kSaved),
                 shares(kOutputs),
                 x[kCached] + x[kCachedStored] + x[kCachedShards]};
}

}  // namespace sluice::planner
