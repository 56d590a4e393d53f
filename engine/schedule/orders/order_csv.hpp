// Orders in torch's pipelining CSV (torch/distributed/pipelining/schedules.py, _Action).
//
// A row is a rank, a cell an action: stage, kind and micro-batch, such as "0F0", "2SEND_B1" or
// "3UNSHARD". Empty cells are pauses and mean nothing. "(0F4;7B1)OVERLAP_F_B" is two actions that
// may run together.
#pragma once

#include <string>
#include <string_view>

#include "engine/schedule/orders/pipeline_order.hpp"

namespace sluice::schedule {

// Reads both dialects: "B" is a whole backward pass, but its first half if the row has a "W" of the
// same stage and micro-batch; older files write whole ones "BW". Throws InputError that names the
// row and the cell. The order may still be one that cannot run (check_order).
PipelineOrder order_from_csv(std::string_view text);

// Ends each row with a newline.
std::string order_to_csv(const PipelineOrder& order);

}  // namespace sluice::schedule
