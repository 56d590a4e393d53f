// The kinds of steps that one run executes, and a schedule for each.
//
// All schedules of a run share the same persistent buffers with the same ids: tokens, losses and
// the homes of model state. They compose where the exit of one is the entry of the next.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/schedule/compile/step_model.hpp"
#include "engine/schedule/schedule.hpp"

namespace sluice::schedule {

enum class StepKind : std::uint8_t {
  // A steady step: forward, loss and backward of all micro-batches, and one update, each where the
  // options place it. A deferred update (carried_units) is that of the step before, and
  // this step's own is pending at exit: its gradient and the clip factor stay in their homes. With
  // kSpeculative the step leaves the other units' state as found. It makes the updated state next
  // to it, from the gradients as they are, and leaves the gradients and the clip factor for a redo.
  kTraining,
  // The loss of one micro-batch; changes no state.
  kEvaluation,
  // With deferred updates only. A steady step with no update pending at entry: the first of a run,
  // or the first after a drain.
  kFirst,
  // With deferred updates only. Makes the pending update and nothing else.
  kDrain,
  // kSpeculative only. Makes a speculative step's update once more, with its clip factor: reads the
  // state that the step found and overwrites the state that it made. Deferred updates stay pending.
  kRedo,
  // Durable runs only. A step with no update pending at entry that also commits the state that it
  // finds, while it computes.
  kSaving,
  // Durable runs only. The commit alone; changes no state.
  kSave,
};
inline constexpr std::size_t kStepKindCount = 7;
inline constexpr std::array<StepKind, kStepKindCount> kStepKinds{
    StepKind::kTraining, StepKind::kEvaluation, StepKind::kFirst, StepKind::kDrain,
    StepKind::kRedo,     StepKind::kSaving,     StepKind::kSave};

// Whether runs with these options have steps of this kind.
constexpr bool has_step(const StepOptions& options, StepKind kind) {
  switch (kind) {
    case StepKind::kTraining:
    case StepKind::kEvaluation:
      return true;
    case StepKind::kFirst:
    case StepKind::kDrain:
      return carries_updates(options);
    case StepKind::kRedo:
      return options.update == UpdatePlacement::kSpeculative;
    case StepKind::kSaving:
    case StepKind::kSave:
      return options.durable;
  }
  return false;
}

// A run's schedules by kind. A kind that the run does not have has no instructions.
class StepSchedules {
 public:
  Schedule& operator[](StepKind kind) { return schedules_[static_cast<std::size_t>(kind)]; }
  const Schedule& operator[](StepKind kind) const {
    return schedules_[static_cast<std::size_t>(kind)];
  }
  // The schedules that runs with these options have, in the order of kStepKinds.
  std::vector<const Schedule*> of(const StepOptions& options) const {
    std::vector<const Schedule*> present;
    for (const StepKind kind : kStepKinds) {
      if (has_step(options, kind)) present.push_back(&(*this)[kind]);
    }
    return present;
  }

 private:
  std::array<Schedule, kStepKindCount> schedules_;
};

}  // namespace sluice::schedule
