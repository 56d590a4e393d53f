// The parts that several orders are made of (private to them).
//
// An order whose pattern needs a certain number of micro-batches is made for that number, and the
// passes of those that the step does not have are left out. That is always safe: a pass waits only
// for passes of its own micro-batch and for earlier ones of its rank.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/schedule/orders/pipeline_order.hpp"

namespace sluice::schedule {

// Stage s lies on rank s mod `ranks`. Precondition of all: the arguments are positive.
PipelineOrder begin_order(std::int32_t ranks, std::int32_t stages_each, std::int32_t microbatches);

// `ahead` forward passes first, then a backward pass after each further forward pass, then the
// rest. Both lists are equally long, and a backward pass has the place of its forward pass.
std::vector<StageAction> alternate(const std::vector<StageAction>& forward,
                                   const std::vector<StageAction>& backward, std::int32_t ahead);

// The list of a rank with one stage: `ahead` forward passes first, then a forward pass, the
// gradient of an input, and the gradient of the weights of `lag` micro-batches before. What remains
// follows.
std::vector<StageAction> split_backward(std::int32_t stage, std::int32_t microbatches,
                                        std::int32_t ahead, std::int32_t lag);

void leave_out_beyond(std::int32_t microbatches, std::vector<StageAction>& list);

}  // namespace sluice::schedule
