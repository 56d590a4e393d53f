// Agreement of the ranks of a job before their first step.
#pragma once

#include <string>

#include "engine/config/config.hpp"
#include "engine/planner/plan.hpp"

namespace sluice::planner {

// 32 hexadecimal digits. Equal on all ranks of one job; another program, settings that decide
// results, step options, number of ranks, ZeRO stage, or order of a group's collectives in any step
// give another digest. plan: the rank's own (plan_rank). Budgets, paths of runs and threads may
// differ between ranks.
std::string world_digest(const Plan& plan, const config::Config& config);

}  // namespace sluice::planner
