// The estimate counts without generating. Each micro-batch adds its passes, its fetches and the
// pieces of its gradients and spills; the step adds the pieces of its update. It may be off by a
// constant factor, but it grows like the schedule in every option. The planner uses it to refuse a
// step with a schedule of gigabytes before it spends them.
#include "engine/planner/choice/step_size.hpp"

#include <algorithm>

#include "base/units.hpp"
#include "engine/schedule/compile/rank_share.hpp"

namespace sluice::planner {
namespace {

// Transfers of one micro-batch's spilled activations, and their Releases.
std::uint64_t spilled_moves(const schedule::StepModel& model,
                            const schedule::StepOptions& options) {
  // Outputs, gradients and at most six saved values, each moved down once and up twice.
  constexpr std::uint64_t kOfAPinnedUnit = 40;
  constexpr std::uint64_t kOfAPiece = 10;
  std::uint64_t moves = 0;
  for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
    const auto of = static_cast<std::int32_t>(unit);
    Tier tier = options.placement.activation_of(of);
    for (std::size_t part = 0; part < model.units[unit].saved_parts.size(); ++part) {
      tier = std::max(tier, options.placement.saved_of(of, part));
    }
    if (tier == Tier::kPinned) moves += kOfAPinnedUnit;
    if (tier != Tier::kStorage) continue;
    const schedule::UnitFootprint& footprint = model.units[unit];
    const std::uint64_t bytes = 2 * footprint.output_bytes + footprint.saved_bytes;
    moves += kOfAPiece * (8 + bytes / (sizeof(float) * options.piece_elems));
  }
  return moves;
}

}  // namespace

// Counts the passes, fetches and gradient pieces of every micro-batch, then the optimizer's pieces.
std::uint64_t step_size(const schedule::StepModel& model, const schedule::StepOptions& options) {
  std::uint64_t pieces = 0;
  for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
    const auto own =
        schedule::home_range(model, StateKind::kMaster, static_cast<std::int32_t>(unit));
    pieces += ceil_div(own.elems(), options.piece_elems);
  }
  // In a round each rank gets the parts of all ranks, in pieces.
  const auto parts =
      static_cast<std::uint64_t>(schedule::rounds_gradients(model, options) ? 1 : model.view.ranks);
  const auto microbatches =
      static_cast<std::uint64_t>(schedule::own_microbatch_count(model, options));
  const std::uint64_t each =
      12 * model.units.size() + 6 * parts * pieces + spilled_moves(model, options);
  const auto updates = static_cast<std::uint64_t>(schedule::update_count(model));
  return updates * (microbatches * each + 10 * pieces);
}

}  // namespace sluice::planner
