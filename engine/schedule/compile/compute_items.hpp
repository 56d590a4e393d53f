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

// All passes of all micro-batches, in the order that the options name.
std::vector<ComputeItem> training_items(const StepModel& model, const StepOptions& options);

}  // namespace sluice::schedule
