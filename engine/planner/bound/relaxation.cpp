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
#include "engine/planner/bound/step_work.hpp"
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
constexpr std::size_t kDevice = 0;
constexpr std::size_t kPinned = 1;
constexpr std::size_t kStorage = 2;

// A sum of columns and a constant: seconds of work, bytes, or a row of the program.
struct Sum {
  std::array<double, kColumns> columns{};
  double constant = 0;

  Sum& operator+=(const Sum& other) {
    constant += other.constant;
    for (std::size_t i = 0; i < kColumns; ++i) columns[i] += other.columns[i];
    return *this;
  }
  Sum& operator*=(double times) {
    constant *= times;
    for (double& column : columns) column *= times;
    return *this;
  }
  friend Sum operator*(Sum sum, double times) { return sum *= times; }
  friend Sum operator+(Sum sum, const Sum& other) { return sum += other; }
  friend Sum operator-(Sum sum, const Sum& other) { return sum += other * -1; }
  std::vector<double> row() const { return {columns.begin(), columns.end()}; }
};

Sum column(std::size_t at) {
  Sum sum;
  sum.columns[at] = 1;
  return sum;
}

// 1 - column
Sum rest(std::size_t at) {
  return Sum{{}, 1} - column(at);
}

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

void at_most(LinearProgram& program, const Sum& sum, double limit) {
  program.at_most(sum.row(), limit - sum.constant);
}

// Each second of the phases does `times` seconds of the work.
void fit_work(LinearProgram& program, Sum work, const std::vector<std::size_t>& phases,
              double times) {
  for (const std::size_t phase : phases) work += column(kPhases + phase) * -times;
  at_most(program, work, 0);
}

// remade: the share of the kind that has no place.
void add_shares(LinearProgram& program, std::size_t kind, Place place, const Sum& remade = {}) {
  const Sum all = column(kind + kDevice) + column(kind + kPinned) + column(kind + kStorage);
  program.equals((remade + all).row(), 1);
  if (place == Place::kAuto) return;
  const auto tier = static_cast<std::size_t>(place) - static_cast<std::size_t>(Place::kDevice);
  program.equals((remade + column(kind + tier)).row(), 1);
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

// The work of a shape, and the rows of its program.
class Relaxation::ShapeProgram {
 public:
  ShapeProgram(const Relaxation& of, const PlanShape& shape, const config::Config::Places& places,
               const TierBytes& budgets, const TierBytes& extra)
      : of_(of), rates_(of.rates_), shape_(shape), places_(places) {
    set_sums(of.config_, step_);
    step_.recompute = shape.recompute;
    bytes_ = model_bytes(of.model_, step_);
    traffic_ = rank_traffic(of.model_, step_, of.costs_.links());
    microbatches_ = schedule::own_microbatch_count(of.model_, step_);
    add_passes();
    add_weights();
    add_activations();
    add_gradients();
    schedule::StepOptions placed = step_;  // with the places that the shape fixes
    placed.order = shape.order;
    place_partials(placed, shape.partial, of.model_);
    add_partials(placed);
    add_update();
    const TierBytes partials = partial_bytes(of.model_, placed);
    for (std::size_t tier = 0; tier < kTierCount; ++tier) {
      room_[tier] = static_cast<double>(budgets[tier]) - static_cast<double>(extra[tier]) -
                    static_cast<double>(partials[tier]);
    }
    for (PhaseWork<Sum>& phase : work_) {
      for (Sum PhaseWork<Sum>::*const lane : PhaseWork<Sum>::lanes()) phase.*lane *= 1 / unit_s_;
    }
  }

  // The bound takes less for granted than the places: values whose next use is near stay on the
  // device whatever their tier is, storage may work on an update before its phase begins, and any
  // updates may be deferred: they run in forward and no state is kept twice.
  enum class For { kBound, kPlaces };
  std::optional<LinearProgram::Solution> minimum(For use) const {
    Sum costs = column(kPhases) + column(kPhases + 1) + column(kPhases + 2);
    // Between places that are equally fast, less work for any lane decides.
    const double price = use == For::kPlaces ? shape_.hidden_price : 0;
    for (const PhaseWork<Sum>& phase : work_) {
      for (Sum PhaseWork<Sum>::*const lane : PhaseWork<Sum>::lanes()) costs += phase.*lane * price;
    }
    LinearProgram program(costs.row());
    add_places(program, use);
    add_device_uses(program);
    add_room(program, use);
    add_phases(program, use);
    return program.minimum();
  }

  // The seconds that the program counts as one.
  double unit_s() const { return unit_s_; }

 private:
  bool by_unit() const { return shape_.order == schedule::ComputeOrder::kUnit; }
  Phase update_phase() const {
    return shape_.update == schedule::UpdatePlacement::kAfterBackward ? kUpdatePhase
           : shape_.update == schedule::UpdatePlacement::kNextForward ? kForwardPhase
                                                                      : kBackwardPhase;
  }

  void add_passes() {
    Sum& forward = work_[kForwardPhase].compute;
    Sum& backward = work_[kBackwardPhase].compute;
    forward.constant = microbatches_ * rates_.forward_s;
    backward.constant =
        microbatches_ * (rates_.backward_s + of_.costs_.recompute_s(shape_.recompute));
    const double pass_s = forward.constant + backward.constant;
    unit_s_ = pass_s > 0 ? pass_s : 1;
    if (!shape_.recompute_is_free) return;
    for (std::size_t i = 0; i < of_.remade_parts_.size(); ++i) {
      remade_parts_ += column(kRemadeParts + i) * of_.remade_parts_[i].share;
      backward += column(kRemadeParts + i) * (microbatches_ * of_.remade_parts_[i].seconds);
    }
    remade_outputs_ = column(kRemadeOutputs) * of_.remade_outputs_.share;
    backward += column(kRemadeOutputs) * (microbatches_ * of_.remade_outputs_.seconds);
  }

  void add_weights() {
    const double fetches = by_unit() ? 1 : microbatches_;
    const double moved = fetches * bytes_.weight;
    const double gathers_s = fetches * traffic_.weight_fetch * rates_.comm_s;
    for (const Phase phase : {kForwardPhase, kBackwardPhase}) {
      PhaseWork<Sum>& work = work_[phase];
      work.fetch((rest(kWeight + kDevice) - column(kCached) - column(kCachedStored)) * moved,
                 (column(kWeight + kStorage) - column(kCachedStored)) * moved, rates_);
      work.comm.constant = gathers_s;
      // A window that stays was gathered for the first forward pass.
      const double least_s = phase == kForwardPhase ? traffic_.weight_fetch * rates_.comm_s : 0;
      work.comm +=
          (column(kCached) + column(kCachedStored) + column(kCachedShards)) * (least_s - gathers_s);
    }
  }

  void add_activations() {
    for (const auto& [kind, bytes] :
         {std::pair(kSaved, bytes_.saved), std::pair(kOutputs, bytes_.outputs)}) {
      for (const Tier tier : {Tier::kPinned, Tier::kStorage}) {
        const std::size_t at = kind + static_cast<std::size_t>(tier);
        work_.keep(column(at) * (microbatches_ * bytes), tier, rates_);
      }
    }
  }

  void add_gradients() {
    PhaseWork<Sum>& backward = work_[kBackwardPhase];
    const double arrivals = gradient_arrivals(of_.model_, step_);
    backward.download +=
        rest(kGradient + kDevice) * (arrivals * bytes_.gradient_part * rates_.copy_s);
    backward.comm.constant += (traffic_.gradients + traffic_.norm) * rates_.comm_s;
    backward.comm.constant +=
        of_.costs_.links().messages_s(of_.model_.view.ranks, traffic_.uneven_gradients);
    const double share = owned_share(of_.model_);
    const bool sums_at_home =
        step_.microbatches > 1 && !schedule::rounds_gradients(of_.model_, step_);
    const double sums_made = sums_at_home ? share * step_.microbatches : 0;
    backward.compute += column(kGradient + kDevice) * (sums_made * rates_.device.accumulate_s);
    backward.optimizer += rest(kGradient + kDevice) *
                          (sums_made * rates_.host.accumulate_s + share * rates_.host.norm_s);
    const double rewrites = sums_at_home && !by_unit() ? microbatches_ : 1;
    const Sum stored = column(kGradient + kStorage);
    backward.write += stored * (rewrites * bytes_.gradient * rates_.storage_write_s);
    backward.read += stored * ((rewrites - 1) * bytes_.gradient * rates_.storage_read_s);
  }

  // The moves of a rank's sums of groups of micro-batches to a lower tier and back
  // (partial_sums.cpp). All but the rank's last micro-batch are added on the host, and each sum that
  // waits at the end comes up once. Reductions are left out, and so are reads of sums that a later
  // micro-batch is added to.
  void add_partials(const schedule::StepOptions& placed) {
    const std::int32_t sums = schedule::partial_sums_at_once(of_.model_, placed);
    const Tier tier = placed.placement.partial_of(0);
    if (sums == 0 || tier == Tier::kDevice) return;
    PhaseWork<Sum>& backward = work_[kBackwardPhase];
    auto elems = static_cast<double>(of_.model_.tied_elems);
    for (const schedule::UnitFootprint& unit : of_.model_.units) {
      elems += static_cast<double>(unit.elems);
    }
    const double earlier = microbatches_ - 1;
    const double sum_bytes = elems * sizeof(float);
    backward.download.constant += earlier * elems * dtype_bytes(of_.model_.dtype) * rates_.copy_s;
    backward.optimizer.constant += earlier * rates_.host.accumulate_s;
    backward.upload.constant += sums * sum_bytes * rates_.copy_s;
    if (tier != Tier::kStorage) return;
    backward.write.constant += earlier * sum_bytes * rates_.storage_write_s;
    backward.read.constant += sums * sum_bytes * rates_.storage_read_s;
  }

  void add_update() {
    PhaseWork<Sum>& update = work_[kUpdatePhase];
    const double updated = bytes_.windows > 0 ? bytes_.updated / bytes_.windows : 1;
    update.optimizer += rest(kOptimizer + kDevice) * (updated * rates_.host.update_s);
    update.compute += column(kOptimizer + kDevice) * (updated * rates_.device.update_s);
    const auto move = [&](Sum& lane, std::size_t at, double bytes, double rate) {
      lane += column(at) * (bytes * rate);
    };
    move(update.read, kOptimizer + kStorage, bytes_.optimizer, rates_.storage_read_s);
    move(update.read, kGradient + kStorage, bytes_.applied, rates_.storage_read_s);
    move(update.write, kOptimizer + kStorage, bytes_.optimizer, rates_.storage_write_s);
    move(update.write, kWeight + kStorage, bytes_.updated, rates_.storage_write_s);
    // State on the device that the host updates, and the other way round.
    const auto cross = [&](Sum& lane, std::size_t kind, double bytes) {
      lane += (column(kind + kDevice) - column(kOptimizer + kDevice)) * (bytes * rates_.copy_s);
    };
    cross(update.upload, kWeight, bytes_.updated);
    cross(update.download, kGradient, bytes_.applied);
    if (bytes_.reads_weight) {
      move(update.read, kWeight + kStorage, bytes_.updated, rates_.storage_read_s);
      cross(update.download, kWeight, bytes_.updated);
    }
    update.comm.constant = traffic_.weights * rates_.comm_s;
  }

  void add_places(LinearProgram& program, For use) const {
    add_shares(program, kWeight, places_.weight);
    add_shares(program, kGradient, places_.gradient);
    add_shares(program, kOptimizer, places_.optimizer);
    const Place activation = use == For::kBound ? Place::kAuto : places_.activation;
    add_shares(program, kSaved, activation, remade_parts_);
    add_shares(program, kOutputs, activation, remade_outputs_);
    if (!shape_.recompute_is_free) return;
    for (std::size_t at = kRemadeParts; at < kColumns; ++at) at_most(program, column(at), 1);
  }

  // The device's update needs weights and gradients there, and a window its weights elsewhere.
  void add_device_uses(LinearProgram& program) const {
    for (const std::size_t needed : {kWeight, kGradient}) {
      at_most(program, column(kOptimizer + kDevice) - column(needed + kDevice), 0);
    }
    at_most(program, column(kCached) - column(kWeight + kPinned), 0);
    at_most(program, column(kCachedStored) - column(kWeight + kStorage), 0);
    // Weights that lie whole on the device are their own windows.
    const double shards = of_.model_.view.shards_weights() ? 1 : 0;
    at_most(program, column(kCachedShards) - column(kWeight + kDevice) * shards, 0);
  }

  void add_room(LinearProgram& program, For use) const {
    const double per_state = 1 / (bytes_.weight + bytes_.gradient + bytes_.optimizer);
    const bool twice =
        shape_.update == schedule::UpdatePlacement::kSpeculative && use == For::kPlaces;
    const double versions = twice ? 2 : 1;
    const double live = by_unit() ? microbatches_ : 1;
    for (std::size_t tier = 0; tier < kTierCount; ++tier) {
      Sum row = column(kWeight + tier) * (versions * bytes_.weight * per_state) +
                column(kGradient + tier) * (bytes_.gradient * per_state) +
                column(kOptimizer + tier) * (versions * bytes_.optimizer * per_state) +
                column(kSaved + tier) * (live * bytes_.saved * per_state) +
                column(kOutputs + tier) * (live * bytes_.outputs * per_state);
      if (tier == kDevice) {
        row += (column(kCached) + column(kCachedStored) + column(kCachedShards)) *
               (bytes_.windows * per_state);
      }
      at_most(program, row, room_[tier] * per_state);
    }
  }

  void add_phases(LinearProgram& program, For use) const {
    const bool bound = use == For::kBound;
    const PhaseWork<Sum>& update = work_[kUpdatePhase];
    const bool carries = bound && update_phase() == kBackwardPhase;
    PhaseWork<Sum> passes = update;  // of forward and backward
    PhaseWork<Sum> all;
    for (const Phase phase : {kForwardPhase, kBackwardPhase, kUpdatePhase}) {
      PhaseWork<Sum> work = phase == kUpdatePhase ? PhaseWork<Sum>{} : work_[phase];
      passes += work;
      if (phase == update_phase() && !carries) work += update;
      add_lanes(program, work, {phase});
      all += work;
      if (!bound) add_storage(program, work, {phase});
    }
    if (carries) {
      add_lanes(program, passes, {kForwardPhase, kBackwardPhase});
      all += update;
    }
    if (bound) add_storage(program, all, {kForwardPhase, kBackwardPhase, kUpdatePhase});
  }

  void add_lanes(LinearProgram& program, const PhaseWork<Sum>& work,
                 const std::vector<std::size_t>& phases) const {
    for (const Sum* lane :
         {&work.compute, &work.upload, &work.download, &work.optimizer, &work.comm}) {
      fit_work(program, *lane, phases, 1);
    }
    if (of_.machine_.cores <= 0) return;
    fit_work(program, work.core_seconds(of_.machine_), phases, of_.machine_.cores);
  }

  void add_storage(LinearProgram& program, const PhaseWork<Sum>& work,
                   const std::vector<std::size_t>& phases) const {
    fit_work(program, work.read, phases, 1);
    fit_work(program, work.write, phases, 1);
    fit_work(program, work.read + work.write, phases, of_.machine_.storage_duplex);
  }

  const Relaxation& of_;
  const StepRates& rates_;
  const PlanShape& shape_;
  const config::Config::Places& places_;
  schedule::StepOptions step_;
  ModelBytes bytes_;
  RankTraffic traffic_;
  double microbatches_ = 0;  // of the rank
  double unit_s_ = 1;
  std::array<double, kTierCount> room_{};
  StepWork<Sum> work_;
  Sum remade_parts_, remade_outputs_;  // shares of values that have no place
};

std::optional<Relaxed> Relaxation::solve(const PlanShape& shape,
                                         const config::Config::Places& places,
                                         const TierBytes& budgets, const TierBytes& extra) const {
  const ShapeProgram program(*this, shape, places, budgets, extra);
  const std::optional<LinearProgram::Solution> least = program.minimum(ShapeProgram::For::kBound);
  if (!least) return std::nullopt;
  const std::optional<LinearProgram::Solution> lean = program.minimum(ShapeProgram::For::kPlaces);
  const std::vector<double>& x = lean ? lean->x : least->x;
  const auto shares = [&](std::size_t kind) {
    return TierShares{x[kind + kDevice], x[kind + kPinned], x[kind + kStorage]};
  };
  // Parts with a place of their own are not told apart here, so there is no bound.
  const double seconds = config_.memory.place.saved.empty() ? least->cost * program.unit_s() : 0;
  return Relaxed{seconds,
                 shares(kWeight),
                 shares(kGradient),
                 shares(kOptimizer),
                 shares(kSaved),
                 shares(kOutputs),
                 x[kCached] + x[kCachedStored] + x[kCachedShards]};
}

}  // namespace sluice::planner
