// Checks before the ranks of a job touch anything: the number of ranks suits the configuration, and
// all ranks were started with the same program, configuration and data.
#pragma once

#include <string>

#include "engine/config/config.hpp"
#include "engine/train/world.hpp"

namespace sluice::train {

// Throws InputError if this number of ranks cannot run the configuration.
void check_ranks(const config::Config& config, int ranks);

// The program and every key. Ranks that differ would plan different steps.
World::Facts facts_of_start(const config::Config& config);
inline constexpr const char* kOneStart = "start all ranks with one program and one configuration";

}  // namespace sluice::train
