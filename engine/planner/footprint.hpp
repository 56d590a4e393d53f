// What the schedule generator needs to know of a model (step_model.hpp), measured from its layers.
#pragma once

#include "engine/model/model.hpp"
#include "engine/schedule/step_model.hpp"

namespace sluice {

// kernels: for workspace sizes, which depend on the machine.
StepModel make_step_model(const Model& model, const BatchShape& batch, const Kernels& kernels);

}  // namespace sluice
