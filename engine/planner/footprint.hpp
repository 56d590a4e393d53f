// What the schedule generator needs to know of a model (step_model.hpp), measured from its layers.
#pragma once

#include "engine/model/parameter_table.hpp"
#include "engine/schedule/step_model.hpp"

namespace sluice {

// table: of the model. kernels: for workspace sizes, which depend on the machine.
StepModel make_step_model(const Model& model, const BatchShape& batch, const ParameterTable& table,
                          const Kernels& kernels);

}  // namespace sluice
