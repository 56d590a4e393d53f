// Plans of a configuration on the host, with the default hardware profile.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <variant>

#include "engine/config/shapes.hpp"
#include "engine/planner/plan.hpp"
#include "kernels/kernels.hpp"

namespace sluice::testing {

inline std::variant<planner::Plan, planner::Refusal> planned(const config::Config& config) {
  static const std::unique_ptr<kernels::Kernels> kernels = kernels::make_host_kernels({1});
  return planner::make_plan(config, model::Model(config::model_shape(config)), *kernels,
                            planner::HardwareProfile{});
}

// The least memory.device with which the configuration is accepted.
inline std::uint64_t least_device(const config::Config& config) {
  const auto plan = planned(config);
  const planner::Refusal& refusal = std::get<planner::Refusal>(plan);
  for (const planner::Suggestion& suggestion : refusal.suggestions) {
    if (suggestion.size() == 1 && suggestion.front().first == "memory.device") {
      return suggestion.front().second;
    }
  }
  ADD_FAILURE() << refusal.sentence();
  return 0;
}

}  // namespace sluice::testing
