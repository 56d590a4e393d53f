// Cuts a model's state into the shards of data-parallel ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/schedule/compile/step_model.hpp"

namespace sluice::parallel {

// Cuts [0, elems) into one range for each rank, at multiples of 4,096 elements (law 2's blocks).
// Sizes differ by at most one block, the larger ones first; with fewer blocks than ranks the last
// ones are empty. Precondition: elems is a multiple of 4,096.
std::vector<schedule::ElemRange> partition_blocks(std::uint64_t elems, std::int32_t ranks);

// The view of one of `ranks` data-parallel ranks on the model's step. Rules that need whole tensors
// get shards of whole tensors, as even over all units as tensors allow; all others get shards of
// blocks, and no rank holds more than rank 0. The shards of a tied use are those of its tensor.
schedule::RankView make_rank_view(const schedule::StepModel& model, std::int32_t rank,
                                  std::int32_t ranks, std::int32_t zero_stage);
// The view of a rank in a world in which rank 0 is a server: it owns all of every unit.
schedule::RankView make_server_view(const schedule::StepModel& model, std::int32_t rank,
                                    std::int32_t ranks);

// One rank for each set of sizes that the shards of a rank have, the first that has them,
// ascending. Ranks with equal sizes need the same memory.
std::vector<std::int32_t> ranks_of_each_size(const schedule::RankView& view);

}  // namespace sluice::parallel
