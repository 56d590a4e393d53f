// What the planner says of a configuration on the host, with the default hardware profile.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <variant>

#include "engine/planner/plan.hpp"
#include "kernels/kernels.hpp"

namespace sluice::testing {

inline std::variant<Plan, Refusal> planned(const Config& config) {
  static const std::unique_ptr<Kernels> kernels = make_host_kernels({1});
  return make_plan(config, Model(model_shape(config)), *kernels, HardwareProfile{});
}

// The least memory.device with which the configuration is accepted.
inline std::uint64_t least_device(const Config& config) {
  const auto plan = planned(config);
  const Refusal& refusal = std::get<Refusal>(plan);
  for (const Suggestion& suggestion : refusal.suggestions) {
    if (suggestion.size() == 1 && suggestion.front().first == "memory.device") {
      return suggestion.front().second;
    }
  }
  ADD_FAILURE() << refusal.sentence();
  return 0;
}

}  // namespace sluice::testing
