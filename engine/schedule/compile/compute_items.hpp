// The passes of a training step in the order in which they compute.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/schedule/compile/step_model.hpp"
#include "engine/schedule/schedule.hpp"

namespace sluice::schedule {

struct ComputeItem {
  Op op;
  std::int32_t unit;
  std::int32_t microbatch;
  std::int32_t run = 0;  // of a kRecompute: how often forward has run before (recompute.hpp)
};

// The micro-batches that this rank computes, by their numbers in the whole step, ascending. With one
// sum micro-batch i lies on rank i mod N; else a rank has consecutive groups.
std::vector<std::int32_t> own_microbatches(const StepModel& model, const StepOptions& options);
std::int32_t last_own_microbatch(const StepModel& model, const StepOptions& options);

// All passes of the rank's micro-batches, in the order that the options name.
std::vector<ComputeItem> training_items(const StepModel& model, const StepOptions& options);

}  // namespace sluice::schedule
