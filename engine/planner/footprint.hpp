// The schedule generator's input (step_model.hpp), measured from a model's layers.
#pragma once

#include "engine/model/model.hpp"
#include "engine/model/parameter_table.hpp"
#include "engine/schedule/compile/step_model.hpp"

namespace sluice::planner {

// table: the model's. kernels: the device's; host_kernels: the optimizer lane's. Both are asked for
// workspace sizes, which depend on the machine, since an update may be made on either side.
schedule::StepModel make_step_model(const model::Model& model, const model::BatchShape& batch,
                                    const model::ParameterTable& table,
                                    const kernels::Kernels& kernels,
                                    const kernels::Kernels& host_kernels);

}  // namespace sluice::planner
