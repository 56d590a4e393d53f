// Cuts a unit's saved region into values that move by themselves.
//
// Neighbouring parts that wait in the same tier and serve the same half of backward form one value.
// Apart they would take the same way at the same time, in more transfers. Parts that are recomputed
// do not wait, so they form values of their own.
#pragma once

#include <vector>

#include "engine/schedule/compile/step_model.hpp"
#include "engine/schedule/schedule.hpp"

namespace sluice::schedule {

struct SavedValue {
  ElemRange bytes;  // of the unit's saved region
  Tier tier = Tier::kDevice;
  SavedFor used_by = SavedFor::kBoth;
  PartMask parts = 0;
  bool remade = false;  // its parts are recomputed (StepOptions::recompute)
};

// Returns a unit's saved values in the order of its saved region; empty if it saves nothing.
std::vector<SavedValue> saved_values(const StepModel& model, const StepOptions& options,
                                     std::int32_t unit);

}  // namespace sluice::schedule
