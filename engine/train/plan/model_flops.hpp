// Model FLOPs utilization: the share of the device's measured product rate that a run uses.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/config/config.hpp"
#include "engine/model/model.hpp"
#include "engine/planner/price/hardware_profile.hpp"

namespace sluice::train {

// Floating-point operations of a training step for each token, forward and backward, without
// recomputation (Chowdhery et al., "PaLM", 2022, appendix B):
//
//   6 N + 12 L H S
//
// N: parameters that take part in matrix products (of the blocks and the head; neither the lookup
// tables of the embedding nor vectors), L: layers, H: hidden size, S: tokens per sample. A product
// costs 2 operations a parameter forward and 4 backward; attention multiplies two matrices of S
// rows for each token.
double flops_per_token(const model::ModelShape& shape, std::int64_t seq);

// Floating-point operations per second of the device's products in the run's precision, as `sluice
// doctor` measured them. GPUs multiply fp16 at bf16's rate. Nothing for a device never measured.
std::optional<double> measured_peak_flops(const planner::HardwareProfile& hardware,
                                          const config::Config& settled);

}  // namespace sluice::train
