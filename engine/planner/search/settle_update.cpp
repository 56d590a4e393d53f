// The last choices of a plan: the number of deferred updates and the depth of the ring of update
// pieces. Coarse trials misjudge them, so exact trials of the training step decide.
#include "engine/planner/search/settle_update.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/units.hpp"
#include "engine/planner/choice/candidates.hpp"

namespace sluice::planner {
namespace {

// A larger ring must make the step shorter by more than this.
constexpr double kAsFast = 0.995;
// Shares of the spare memory that a ring takes: one part of so many.
constexpr std::uint64_t kManyPieces = 256;
constexpr std::array<std::uint64_t, 3> kSharesOfFew{1, 3, 9};
constexpr std::array<std::uint64_t, 3> kSharesOfMany{1, 3, 12};
// With all settings made by hand, steps of more instructions try fewer rings. Each costs a tenth of a
// second there.
constexpr std::size_t kLongByHand = 80'000;

// Bytes of a unit's weights and gradients that are staged with its state, for they lie on storage too.
std::uint64_t staged_bytes(const schedule::StepModel& model, const schedule::Placement& placement,
                           std::size_t unit) {
  const std::uint64_t elems = updated_elems(model, unit);
  const std::uint64_t weight = elems * dtype_bytes(model.dtype);
  const std::uint64_t gradient = elems * sizeof(float);
  return (placement.weight[unit] == Tier::kStorage ? weight : 0) +
         (placement.gradient[unit] == Tier::kStorage ? gradient : 0);
}

// The pieces of optimizer state that come from storage and fit into `bytes`, with all that is staged
// with them or alone.
std::uint64_t pieces_within(std::uint64_t bytes, const schedule::StepModel& model,
                            const schedule::StepOptions& options, bool counts_staged) {
  std::uint64_t state_bytes = 0;
  std::uint64_t elems = 0;
  std::uint64_t pieces = 0;
  for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
    if (options.placement.optimizer[unit] != Tier::kStorage) continue;
    state_bytes += optimizer_state_bytes(model, unit);
    if (counts_staged) state_bytes += staged_bytes(model, options.placement, unit);
    elems += updated_elems(model, unit);
    pieces += ceil_div(updated_elems(model, unit), options.update_piece_elems);
  }
  if (pieces == 0) return 0;
  // Each kind of state in a piece begins at an aligned place.
  const std::uint64_t piece_bytes =
      ceil_div(state_bytes, ceil_div(elems, options.update_piece_elems)) +
      kOptimizerKinds.size() * schedule::kDirectAlignmentBytes;
  return std::min(pieces, bytes / piece_bytes);
}

class UpdateChoice {
 public:
  UpdateChoice(const config::Config& config, const schedule::StepModel& model,
               const TierBytes& budgets, const Trials& trials, const Compiled& from)
      : config_(config),
        model_(model),
        budgets_(budgets),
        trials_(trials),
        from_(from),
        options_(from.options),
        seconds_(from.simulation.total_s) {}

  // Tries a few shares of the spare memory, from the largest on, and takes the least that is
  // as fast as the first one that fits, or that one if `is_first_enough`. Returns whether the step gets
  // shorter. A ring changes the order of the work, not the work.
  bool deepen(std::uint64_t spare_bytes, bool is_first_enough) {
    const std::uint64_t most = pieces_within(
        std::min(spare_bytes, config_.memory.update_ring_bytes), model_, options_, is_first_enough);
    const schedule::StepOptions shallow = options_;
    const double shallow_s = seconds_;
    double longest_s = shallow_s * kAsFast;
    if (trials_.least_s(step_ ? *step_ : from_) > longest_s) return false;
    for (const std::uint64_t share : most > kManyPieces ? kSharesOfMany : kSharesOfFew) {
      schedule::StepOptions options = shallow;
      options.update_lookahead += static_cast<std::int32_t>(most / share);
      options.keeps_update_ring = true;
      if (most / share == 0) break;
      const bool first = seconds_ == shallow_s;
      const Outcome outcome = take(options, longest_s);
      if (outcome == Outcome::kSlow) break;
      if (outcome == Outcome::kTaken && is_first_enough) break;
      if (outcome == Outcome::kTaken && first) longest_s = seconds_ / kAsFast;
    }
    return seconds_ < shallow_s;
  }

  // The search chose the deferred updates by coarse trials, and for a shallow ring.
  void choose_carried() {
    for (const schedule::StepOptions& options : carried_variants(config_, options_)) {
      take(options, seconds_ * kAsFast);
    }
  }

  // The training step of the choice; nothing if the search's is as fast.
  std::optional<Compiled>& step() { return step_; }

 private:
  enum class Outcome { kTaken, kTooLarge, kSlow };

  // Takes the options if their step fits and is short enough.
  Outcome take(const schedule::StepOptions& options, double longest_s) {
    std::optional<Compiled> step = trials_.place_training(options, budgets_);
    if (!step) return Outcome::kTooLarge;
    trials_.simulate(*step);
    if (step->simulation.total_s > longest_s) return Outcome::kSlow;
    options_ = options;
    seconds_ = step->simulation.total_s;
    step_ = std::move(step);
    return Outcome::kTaken;
  }

  const config::Config& config_;
  const schedule::StepModel& model_;
  const TierBytes& budgets_;
  const Trials& trials_;
  const Compiled& from_;
  schedule::StepOptions options_;
  double seconds_;                // of a training step with them
  std::optional<Compiled> step_;  // with them
};

}  // namespace

void settle_update(const config::Config& config, const schedule::StepModel& model,
                   const TierBytes& budgets, const Trials& trials, Compiled& best) {
  const auto pinned = static_cast<std::size_t>(Tier::kPinned);
  const std::uint64_t used = best.most_bytes[pinned];
  UpdateChoice choice(config, model, budgets, trials, best);
  // Here the step's own size counts, since estimates are up to five times as large.
  const std::size_t size = best.schedules[schedule::StepKind::kTraining].instructions.size();
  choice.choose_carried();
  const bool is_long_by_hand = size > kLongByHand && makes_all_choices(config);
  // Storage that activations wait for has little time left for state in the backward pass.
  const bool is_spent =
      is_long_by_hand && schedule::spills_activations(best.options.placement, Tier::kStorage);
  // Without pieces of its own an update is not fed by storage, or memory is short.
  const bool has_ring = best.options.update_piece_elems > 0 && used < budgets[pinned] && !is_spent;
  if (has_ring && choice.deepen(budgets[pinned] - used, is_long_by_hand)) choice.choose_carried();
  if (!choice.step()) return;
  trials.complete(*choice.step(), &best);
  if (fits(choice.step()->most_bytes, budgets)) best = std::move(*choice.step());
}

}  // namespace sluice::planner
