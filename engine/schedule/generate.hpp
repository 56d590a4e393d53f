// Generators: a model's footprint and options in, the list of a step's instructions out.
//
// The result has reads, writes and releases, but no `deps` and no places: link() and pack() add
// them (compile_* below does all). All schedules of one run share the same persistent buffers, with
// the same ids: tokens, losses and the homes of model state.
#pragma once

#include "engine/schedule/schedule.hpp"
#include "engine/schedule/step_model.hpp"

namespace sluice {

// One training step, plain order: per micro-batch forward, loss, backward; then the optimizer.
Schedule generate_training_step(const StepModel& model, const StepOptions& options);
// Of a durable run (options.durable): the training step that also commits the state that it finds,
// while it computes; and the commit alone, which changes no state.
Schedule generate_saving_step(const StepModel& model, const StepOptions& options);
Schedule generate_save(const StepModel& model, const StepOptions& options);
// The loss of one micro-batch; changes no state.
Schedule generate_evaluation(const StepModel& model, const StepOptions& options);

// Generated, linked and packed.
Schedule compile_training_step(const StepModel& model, const StepOptions& options);
Schedule compile_saving_step(const StepModel& model, const StepOptions& options);
Schedule compile_save(const StepModel& model, const StepOptions& options);
Schedule compile_evaluation(const StepModel& model, const StepOptions& options);

}  // namespace sluice
