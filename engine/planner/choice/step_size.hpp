// Estimates the number of a step's instructions before it is generated.
#pragma once

#include <cstdint>

#include "engine/schedule/compile/step_model.hpp"

namespace sluice::planner {

// A step with more instructions takes minutes and gigabytes to plan, and is refused.
inline constexpr std::uint64_t kMostStepInstructions = 2'000'000;

// A step with so many takes milliseconds to compile.
inline constexpr std::uint64_t kSmallStepInstructions = 20'000;

// An estimate that grows as the schedule does.
std::uint64_t step_size(const schedule::StepModel& model, const schedule::StepOptions& options);

}  // namespace sluice::planner
