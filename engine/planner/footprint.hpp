// What the schedule generator needs to know of a model (step_model.hpp), measured from its layers.
#pragma once

#include "engine/model/parameter_table.hpp"
#include "engine/schedule/compile/step_model.hpp"

namespace sluice::planner {

// table: of the model. kernels: the device's, for workspace sizes, which depend on the machine;
// host_kernels: those of the optimizer lane (an update may be made on either side).
schedule::StepModel make_step_model(const model::Model& model, const model::BatchShape& batch,
                                    const model::ParameterTable& table,
                                    const kernels::Kernels& kernels,
                                    const kernels::Kernels& host_kernels);

}  // namespace sluice::planner
