#include "engine/planner/step_size.hpp"

#include "base/units.hpp"

namespace sluice {
namespace {

// Transfers of the activations of one micro-batch that are spilled, and their releases.
std::uint64_t spilled_moves(const StepModel& model, const StepOptions& options) {
  constexpr std::uint64_t kOfAPinnedUnit = 15;  // three values down and twice up
  constexpr std::uint64_t kOfAPiece = 10;
  std::uint64_t moves = 0;
  for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
    const Tier tier = options.placement.activation_of(static_cast<std::int32_t>(unit));
    if (tier == Tier::kPinned) moves += kOfAPinnedUnit;
    if (tier != Tier::kStorage) continue;
    const UnitFootprint& footprint = model.units[unit];
    const std::uint64_t bytes = 2 * footprint.output_bytes + footprint.saved_bytes;
    moves += kOfAPiece * (3 + bytes / (sizeof(float) * options.piece_elems));
  }
  return moves;
}

}  // namespace

// Passes, fetches and gradients of every micro-batch, then the optimizer.
std::uint64_t step_size(const StepModel& model, const StepOptions& options) {
  std::uint64_t pieces = 0;
  for (const UnitFootprint& unit : model.units) pieces += ceil_div(unit.elems, options.piece_elems);
  const auto microbatches = static_cast<std::uint64_t>(options.microbatches);
  const std::uint64_t each = 12 * model.units.size() + 6 * pieces + spilled_moves(model, options);
  return microbatches * each + 10 * pieces;
}

}  // namespace sluice
