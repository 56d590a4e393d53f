// The order in which a server makes several updates: the rank that each gradient comes from, and
// the version of the weights that each micro-batch reads.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/schedule/orders/pipeline_order.hpp"
#include "engine/schedule/rank_view.hpp"

namespace sluice::parallel {

// By update: the rank that the gradient comes from. Every rank comes equally often, or once more
// than others, in an order that follows from the seed. Precondition: updates >= ranks.
std::vector<std::int32_t> draw_arrivals(std::int32_t ranks, std::int32_t updates,
                                        std::uint64_t seed);

// An order of one stage, which every rank has. rounds: micro-batches of each rank in an update;
// with arrivals an update has one micro-batch of one rank, and the order's micro-batches are those
// of all.
schedule::PipelineOrder make_server_order(const schedule::RankView& view, std::int32_t updates,
                                          std::int32_t rounds);

}  // namespace sluice::parallel
