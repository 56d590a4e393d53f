// One plan for all ranks: the first rank searches, and the others compile its choice.
#pragma once

#include <string>

#include "engine/train/prepare.hpp"
#include "engine/train/world.hpp"

namespace sluice::train {

// The settled configuration and the step options of the first rank's plan, for the other ranks.
// Precondition: prepared has a plan.
std::string plan_message(const Prepared& prepared);

// The plan of another rank, with a backend of its own. Throws InputError if it breaks a budget.
Prepared prepare_rank(const std::string& message, int rank);

// Throws JobError unless the ranks will meet in every collective and round alike.
void check_plans(World& world, const Prepared& prepared);

// Settles the values that one rank alone would settle otherwise: the backend, and the compute threads, of which
// a rank gets its share where all ranks of the node may use all processors.
void settle_for_ranks(const World& world, config::Config& config);

}  // namespace sluice::train
