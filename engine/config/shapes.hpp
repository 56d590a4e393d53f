// The configuration translated into the terms of the rooms below: the model's shape, the batch's,
// the optimizer's options and its table of parameters.
#pragma once

#include "engine/config/config.hpp"
#include "engine/model/layer.hpp"
#include "engine/model/model.hpp"
#include "engine/model/parameter_table.hpp"
#include "kernels/optimizer_options.hpp"

namespace sluice::config {

model::ModelShape model_shape(const Config& config);
// One micro-batch, and the dtype of weights, activations and gradients.
// The part of the model that a rank of the world holds.
model::TensorShare tensor_share(const Config& config, int rank);
model::BatchShape batch_shape(const Config& config);
kernels::OptimizerOptions optimizer_options(const Config& config);
// Throws InputError as ParameterTable does.
model::ParameterTable parameter_table(const Config& config, const model::Model& model);

}  // namespace sluice::config
