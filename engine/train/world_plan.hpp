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
Prepared prepare_rank(const std::string& message, int rank, const DeviceShare& share = {});

// Throws JobError unless the ranks will meet in every collective and round alike.
void check_plans(World& world, const Prepared& prepared);

// Whether the ranks of the first rank's machine may all use the same processors: no launcher has
// bound each to its own. All ranks call it.
bool share_processors(World& world);

// This rank's part of a GPU, if `config` asks for one. All ranks call it, with equal
// configurations. The number of ranks is that of the GPU with the most, as all have the same
// budgets.
DeviceShare share_gpus(World& world, const config::Config& config);

// Settles the values that one rank alone would settle otherwise: the backend, the compute threads,
// and the transport of GPUs. divides: the ranks of the machine share its processors, so each gets
// its part of them. Throws InputError if NCCL is asked for and cannot join the GPUs.
void settle_for_ranks(const World& world, bool divides, const DeviceShare& share,
                      config::Config& config);

}  // namespace sluice::train
