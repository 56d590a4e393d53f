// The device memory that a unit takes by itself, however the rest of the model is placed.
#pragma once

#include <cstdint>
#include <string>

#include "engine/schedule/compile/step_model.hpp"

namespace sluice::planner {

struct UnitNeed {
  std::string unit;
  std::uint64_t device_bytes = 0;
};

// The unit with the largest pass, and the bytes that this pass holds on the device at one time. No
// plan needs less, whatever it spills or recomputes. chunk_bytes: of a device slot.
UnitNeed largest_unit_need(const schedule::StepModel& model, std::uint64_t chunk_bytes);

}  // namespace sluice::planner
