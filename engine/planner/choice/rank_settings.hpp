// The settings that several data-parallel ranks can run together.
#pragma once

#include "engine/config/config.hpp"
#include "engine/schedule/compile/step_model.hpp"

namespace sluice::planner {

// A plan compiles and proves the lists of all its ranks. Time and memory grow with the square of
// their number, since each names all others: 64 ranks of a model with 34 units took 7 s and 0.4 GB.
inline constexpr std::int64_t kMostPlannedRanks = 64;
// A plan on paper compiles a list for each class of ranks, but describes each rank.
inline constexpr std::int64_t kMostRanksOnPaper = 1 << 16;

// Throws InputError, one sentence that names the key and the right value, where the ranks are more
// than `most`, cannot divide the step or cannot add the sums of its groups.
void check_rank_counts(const config::Config& config, std::int64_t most = kMostPlannedRanks);
// Whether sums depend on a rank's place among the others: around a ring, or with nodes that sum first.
bool sums_by_place(const config::Config& config);

// The same configuration with the places that the ZeRO stage leaves no choice for: below stage 3
// every rank keeps all weights on its device, and in stage 0 all gradients. Throws InputError where
// memory.place.* asks for another place.
config::Config with_places_of_stage(config::Config config);

// Sets how the gradients of the configuration's ranks are summed: microbatches, fold_groups, sum,
// bucket_elems and node_ranks. A ring has a group for each rank.
void set_sums(const config::Config& config, schedule::StepOptions& options);

// Throws InputError unless `options`, which another rank may have sent, are for the step of this
// configuration and model. step: with the rank's view.
void check_options(const schedule::StepOptions& options, const config::Config& config,
                   const schedule::StepModel& step);

}  // namespace sluice::planner
