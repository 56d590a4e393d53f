// The models and the machine of `sluice bench plan`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/planner/price/hardware_profile.hpp"

namespace sluice::bench {

// A server with one GPU: 32 cores, 100 TFLOP/s, a link of 24 GB/s, one NVMe drive. Not measured.
planner::HardwareProfile plan_machine();

struct PlanCase {
  std::string name;
  config::Config config;
};
// Known models and budgets.
std::vector<PlanCase> plan_cases();

// Up to 100 units and 128 micro-batches, with random budgets.
config::Config random_plan_shape(std::uint64_t seed);
// At most 5 units and 4 micro-batches. Its budgets hold between a twentieth and all of its state
// and activations.
config::Config random_small_model(std::uint64_t seed);

}  // namespace sluice::bench
