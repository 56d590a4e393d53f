// From a model's footprint and a step's options to its schedules.
#pragma once

#include "allocator/packing/packing_memo.hpp"
#include "engine/schedule/compile/step_kind.hpp"
#include "engine/schedule/compile/step_model.hpp"
#include "engine/schedule/schedule.hpp"

namespace sluice::schedule {

// The list of a step's instructions with reads, writes and releases, but without `deps` and places:
// link() and pack() add them. Precondition of kDrain and kRedo: runs with these options have them.
Schedule generate(const StepModel& model, const StepOptions& options, StepKind kind);

// Generated, with places for all buffers. Its need is known; link_placed() adds the deps. memo: see
// pack().
Schedule generate_placed(const StepModel& model, const StepOptions& options, StepKind kind,
                         packing::PackingMemo* memo = nullptr);
void link_placed(Schedule& schedule);

// Generated, linked and packed.
Schedule compile(const StepModel& model, const StepOptions& options, StepKind kind);
// All kinds that runs with these options have.
StepSchedules compile_all(const StepModel& model, const StepOptions& options);

}  // namespace sluice::schedule
