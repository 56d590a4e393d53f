// It is the drain of a run whose updates all wait (UpdatePlacement::kNextForward), with the norms
// and the clip factor in front of it: a trainer has taken these in the step that left the
// gradients.
#include "engine/schedule/compile/host_update.hpp"

#include <numeric>
#include <vector>

#include "base/error.hpp"
#include "engine/schedule/compile/host_gradient_path.hpp"
#include "engine/schedule/compile/link.hpp"
#include "engine/schedule/compile/pack.hpp"
#include "engine/schedule/compile/state_save.hpp"
#include "engine/schedule/compile/step_builder.hpp"
#include "engine/schedule/compile/update_stream.hpp"

namespace sluice::schedule {

Schedule compile_host_update(const StepModel& model, const StepOptions& options) {
  StepOptions waiting = options;
  waiting.update = UpdatePlacement::kNextForward;
  StepBuilder builder(model, waiting, /*weight_version=*/1);
  std::vector<std::int32_t> units(model.units.size());
  std::iota(units.begin(), units.end(), 0);
  for (const std::int32_t unit : units) {
    SLUICE_CHECK(builder.home_tier(StateKind::kGradient, unit) == Tier::kPinned);
    const BufferId gradient = builder.home(StateKind::kGradient, unit);
    std::int32_t number = 0;
    for (const ElemRange piece : builder.pieces(builder.updated_range(unit))) {
      emit_host_norm(builder, unit, gradient, piece, number++);
    }
  }
  emit_clip_factor(builder);
  UpdateStream(builder, units, {.gradients_complete = true, .clips = true}).emit_rest();
  Schedule schedule =
      builder.finish({.deferred = {0, 1, true, false}, .others = {1, 1, false, false}});
  link(schedule);
  pack(schedule);
  return schedule;
}

// No gradient is part of it: a commit finds no update pending.
Schedule compile_host_save(const StepModel& model, const StepOptions& options) {
  StepOptions waiting = options;
  waiting.update = UpdatePlacement::kNextForward;
  StepBuilder builder(model, waiting, /*weight_version=*/0);
  StateSaver(builder).commit();
  Schedule schedule = builder.finish({});
  link(schedule);
  pack(schedule);
  return schedule;
}

}  // namespace sluice::schedule
