#include <algorithm>

#include "engine/schedule/orders/pass_lists.hpp"

namespace sluice::schedule {

// Further forward passes fill the time in which a rank would wait for its first gradient, two for
// each rank after it. The gradients of weights wait twice as long as in H1.
PipelineOrder make_zb_h2_order(std::int32_t ranks, std::int32_t microbatches) {
  PipelineOrder order = begin_order(ranks, 1, microbatches);
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    std::vector<StageAction>& list = order.actions[static_cast<std::size_t>(rank)];
    list = split_backward(rank, std::max(microbatches, 2 * ranks - 1), 2 * (ranks - rank - 1),
                          2 * rank);
    leave_out_beyond(microbatches, list);
  }
  return order;
}

}  // namespace sluice::schedule
