// Generators: a model's footprint and options in, the list of a step's instructions out.
//
// The result has reads, writes and releases, but no `deps` and no places: link() and pack() add
// them (compile_* below does all). All schedules of one run share the same persistent buffers, with
// the same ids: tokens, losses and the homes of model state.
#pragma once

#include "engine/schedule/compile/step_model.hpp"
#include "engine/schedule/schedule.hpp"

namespace sluice::schedule {

// One training step: forward, loss and backward of all micro-batches, and one update, each where
// `options` says. With UpdatePlacement::kNextForward the update is that of the step before, and
// this step's own is pending at exit: its gradients and clip factor stay in their homes. With
// kSpeculative it leaves the state as found, beside it the state updated by gradients as they are,
// and what a redo needs: gradients and clip factor.
Schedule generate_training_step(const StepModel& model, const StepOptions& options);
// The same where no update is pending at entry: at the start, and behind a drain. Only with
// kNextForward it differs.
Schedule generate_first_step(const StepModel& model, const StepOptions& options);
// Makes the pending update, and nothing else. Precondition: kNextForward.
Schedule generate_drain(const StepModel& model, const StepOptions& options);
// Makes a speculative step's update once more, as its clip factor says, and nothing else: from the
// state that the step found, over what it made beside. Precondition: kSpeculative.
Schedule generate_redo(const StepModel& model, const StepOptions& options);
// Of a durable run (options.durable): the first step that also commits the state that it finds,
// while it computes; and the commit alone, which changes no state. Neither finds an update pending.
Schedule generate_saving_step(const StepModel& model, const StepOptions& options);
Schedule generate_save(const StepModel& model, const StepOptions& options);
// The loss of one micro-batch; changes no state.
Schedule generate_evaluation(const StepModel& model, const StepOptions& options);

// Generated, linked and packed.
Schedule compile_training_step(const StepModel& model, const StepOptions& options);
Schedule compile_first_step(const StepModel& model, const StepOptions& options);
Schedule compile_drain(const StepModel& model, const StepOptions& options);
Schedule compile_redo(const StepModel& model, const StepOptions& options);
Schedule compile_saving_step(const StepModel& model, const StepOptions& options);
Schedule compile_save(const StepModel& model, const StepOptions& options);
Schedule compile_evaluation(const StepModel& model, const StepOptions& options);

}  // namespace sluice::schedule
