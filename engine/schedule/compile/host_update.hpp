// The schedule of a host program's update. The program brings gradients to their homes in pinned
// memory; the schedule takes their norm, computes the clip factor and updates all units.
#pragma once

#include "engine/schedule/compile/step_model.hpp"
#include "engine/schedule/schedule.hpp"

namespace sluice::schedule {

// Generated, linked and packed. Of the options it reads piece sizes, lookaheads and placement; all
// gradients must be placed in pinned memory. The model's units need no passes.
Schedule compile_host_update(const StepModel& model, const StepOptions& options);
// With options.durable: all state is written to storage as it lies, and committed. It shares homes
// and their ids with the update, and changes no state.
Schedule compile_host_save(const StepModel& model, const StepOptions& options);

}  // namespace sluice::schedule
