// How many instructions a step will have, before it is generated.
#pragma once

#include <cstdint>

#include "engine/schedule/compile/step_model.hpp"

namespace sluice::planner {

// A step of more instructions than this takes minutes and gigabytes to plan.
inline constexpr std::uint64_t kMostStepInstructions = 2'000'000;

// An estimate that grows as the schedule does.
std::uint64_t step_size(const schedule::StepModel& model, const schedule::StepOptions& options);

}  // namespace sluice::planner
