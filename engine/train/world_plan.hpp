// One plan for all ranks: the first rank searches, and the others compile its choice.
#pragma once

#include <string>

#include "engine/train/plan/prepare.hpp"
#include "engine/train/world.hpp"

namespace sluice::train {

// The settled configuration and the step options of the first rank's plan, for the other ranks.
// Precondition: prepared has a plan.
std::string plan_message(const Prepared& prepared);

// The plan of another rank, with a backend of its own. Throws InputError if it breaks a budget.
Prepared prepare_rank(const std::string& message, int rank);

// Throws JobError unless the ranks will meet in every collective and round alike.
void check_plans(World& world, const Prepared& prepared);

// Whether the ranks of the first rank's machine may all use the same processors: no launcher has
// bound each to its own. All ranks call it.
bool share_processors(World& world);

// Settles the values that one rank alone would settle otherwise: the backend, and the compute
// threads. divides: the ranks of the machine share its processors, so each gets its part of them.
void settle_for_ranks(const World& world, bool divides, config::Config& config);

}  // namespace sluice::train
