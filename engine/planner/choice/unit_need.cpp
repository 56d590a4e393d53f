// Adds up the buffers of each pass of each unit, as generate.cpp lists them. Windows take whole
// slots. Alignment of the other buffers is left out, so the sum is never above a plan's need.
#include "engine/planner/choice/unit_need.hpp"

#include <algorithm>

#include "base/units.hpp"

namespace sluice::planner {
namespace {

using schedule::SavedFor;
using schedule::StepModel;
using schedule::UnitFootprint;

// The saved bytes that one half of backward reads.
std::uint64_t saved_bytes_for(const UnitFootprint& unit, SavedFor half) {
  if (unit.saved_parts.empty()) return unit.saved_bytes;
  std::uint64_t bytes = 0;
  for (const schedule::SavedPart& part : unit.saved_parts) {
    if (part.used_by == SavedFor::kBoth || part.used_by == half) bytes += part.bytes;
  }
  return bytes;
}

std::uint64_t largest_pass_bytes(const StepModel& model, std::size_t at,
                                 std::uint64_t chunk_bytes) {
  const UnitFootprint& unit = model.units[at];
  const auto window = [&](std::uint64_t elems) {
    return round_up(elems * dtype_bytes(model.dtype), chunk_bytes);
  };
  std::uint64_t weights = window(unit.elems);
  std::uint64_t gradients = weights;
  if (unit.borrows >= 0) {
    weights += window(model.units[static_cast<std::size_t>(unit.borrows)].elems);
    gradients += window(model.tied_elems);
  }
  const std::uint64_t input = at > 0 ? model.units[at - 1].output_bytes : model.token_bytes;
  const std::uint64_t forward =
      weights + input + unit.output_bytes + unit.saved_bytes + unit.forward_workspace_bytes;
  const std::uint64_t backward_input =
      window(unit.elems) + 2 * input + unit.output_bytes + unit.context_bytes +
      saved_bytes_for(unit, SavedFor::kBackwardInput) + unit.backward_input_workspace_bytes;
  // The head's weight gradient reads its weights, too.
  const std::uint64_t backward_weight =
      gradients + (unit.is_head ? weights : 0) + input + unit.output_bytes + unit.context_bytes +
      saved_bytes_for(unit, SavedFor::kBackwardWeight) + unit.backward_weight_workspace_bytes;
  return std::max({forward, unit.has_input ? backward_input : 0, backward_weight});
}

}  // namespace

UnitNeed largest_unit_need(const StepModel& model, std::uint64_t chunk_bytes) {
  UnitNeed largest;
  for (std::size_t at = 0; at < model.units.size(); ++at) {
    const std::uint64_t bytes = largest_pass_bytes(model, at, chunk_bytes);
    if (bytes > largest.device_bytes) largest = {model.units[at].name, bytes};
  }
  return largest;
}

}  // namespace sluice::planner
