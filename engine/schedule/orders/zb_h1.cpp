#include <algorithm>

#include "engine/schedule/orders/pass_lists.hpp"

namespace sluice::schedule {

// As 1F1B, but the gradients of weights of rank i wait for i micro-batches more. They fill the time
// at the end, in which a later rank would wait for nothing, and hold as many values as the first
// rank does.
PipelineOrder make_zb_h1_order(std::int32_t ranks, std::int32_t microbatches) {
  PipelineOrder order = begin_order(ranks, 1, microbatches);
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    std::vector<StageAction>& list = order.actions[static_cast<std::size_t>(rank)];
    list = split_backward(rank, std::max(microbatches, ranks), ranks - rank - 1, rank);
    leave_out_beyond(microbatches, list);
  }
  return order;
}

}  // namespace sluice::schedule
