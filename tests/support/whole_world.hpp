// The plans of all ranks of a world, proved together.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/planner/plan.hpp"
#include "engine/schedule/check/validate.hpp"
#include "engine/schedule/merge.hpp"

namespace sluice::testing {

// validate() accepts the merged schedules of all ranks' plans, in rank order, within the budgets of
// each rank.
inline void expect_world_holds(const std::vector<planner::Plan>& plans,
                               const config::Config& config) {
  const planner::TierBytes budgets{config.memory.device_bytes, config.memory.pinned_bytes,
                                   config.memory.storage_bytes};
  for (const schedule::StepKind kind : schedule::kStepKinds) {
    if (!schedule::has_step(plans.front().options, kind)) continue;
    std::vector<schedule::Schedule> lists;
    for (const planner::Plan& plan : plans) lists.push_back(plan.schedules[kind]);
    for (const std::string& problem : schedule::validate(schedule::merge(lists), budgets)) {
      ADD_FAILURE() << problem;
    }
  }
}

}  // namespace sluice::testing
