// How what a unit saves is cut into values that move alone.
//
// Parts that lie next to each other, wait in the same place and serve the same half of backward
// travel together: each of them would take the same way at the same time, in more transfers.
#pragma once

#include <vector>

#include "engine/schedule/compile/step_model.hpp"
#include "engine/schedule/schedule.hpp"

namespace sluice::schedule {

struct SavedValue {
  ElemRange bytes;  // of the unit's saved region
  Tier tier = Tier::kDevice;
  SavedFor used_by = SavedFor::kBoth;
};

// In the order of the region. Empty: the unit saves nothing.
std::vector<SavedValue> saved_values(const StepModel& model, const Placement& placement,
                                     std::int32_t unit);

}  // namespace sluice::schedule
