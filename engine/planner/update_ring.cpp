#include "engine/planner/update_ring.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/units.hpp"
#include "engine/planner/candidates.hpp"

namespace sluice::planner {
namespace {

// A larger ring must make the step shorter by more than this.
constexpr double kAsFast = 0.995;

// The pieces of optimizer state that come from storage and fit into `bytes`.
std::uint64_t pieces_within(std::uint64_t bytes, const schedule::StepModel& model,
                            const schedule::StepOptions& options) {
  std::uint64_t state_bytes = 0;
  std::uint64_t elems = 0;
  std::uint64_t pieces = 0;
  for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
    if (options.placement.optimizer[unit] != Tier::kStorage) continue;
    state_bytes += optimizer_state_bytes(model, unit);
    elems += model.units[unit].elems;
    pieces += ceil_div(model.units[unit].elems, options.update_piece_elems);
  }
  if (pieces == 0) return 0;
  // Each kind of state in a piece begins at an aligned place.
  const std::uint64_t piece_bytes =
      ceil_div(state_bytes, ceil_div(elems, options.update_piece_elems)) +
      kOptimizerKinds.size() * schedule::kDirectAlignmentBytes;
  return std::min(pieces, bytes / piece_bytes);
}

}  // namespace

void deepen_update_ring(const schedule::StepModel& model, const TierBytes& budgets,
                        std::uint64_t most_bytes, const Trials& trials, Compiled& best) {
  const auto pinned = static_cast<std::size_t>(Tier::kPinned);
  const std::uint64_t used = best.need.peak_bytes()[pinned];
  // Without pieces of its own an update is not fed by storage, or memory is short.
  if (best.options.update_piece_elems == 0 || used >= budgets[pinned]) return;
  const std::uint64_t most =
      pieces_within(std::min(budgets[pinned] - used, most_bytes), model, best.options);
  std::optional<schedule::StepOptions> deepest;
  double longest_s = best.simulation.total_s * kAsFast;
  for (const std::uint64_t share : {1, 3, 9, 27}) {
    schedule::StepOptions options = best.options;
    options.update_lookahead += static_cast<std::int32_t>(most / share);
    if (options.update_lookahead == best.options.update_lookahead) break;
    const Trial trial = trials.training(options);
    if (!fits(trial.need, budgets)) continue;
    if (trial.seconds > longest_s) break;
    if (!deepest) longest_s = trial.seconds / kAsFast;
    deepest = std::move(options);
  }
  if (!deepest) return;
  Compiled compiled = trials.exact(*deepest);
  if (!fits(compiled.need.peak_bytes(), budgets)) return;
  trials.simulate(compiled);
  best = std::move(compiled);
}

}  // namespace sluice::planner
