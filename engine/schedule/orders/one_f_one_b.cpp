#include "engine/schedule/orders/pass_lists.hpp"

namespace sluice::schedule {

// Rank i runs as many forward passes ahead as there are ranks after it: the first gradient comes
// back when the last rank has got its first micro-batch.
PipelineOrder make_1f1b_order(std::int32_t ranks, std::int32_t microbatches) {
  PipelineOrder order = begin_order(ranks, 1, microbatches);
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    std::vector<StageAction> forward;
    std::vector<StageAction> backward;
    for (std::int32_t k = 0; k < microbatches; ++k) {
      forward.push_back({ActionKind::kForward, rank, k});
      backward.push_back({ActionKind::kBackward, rank, k});
    }
    order.actions[static_cast<std::size_t>(rank)] = alternate(forward, backward, ranks - rank - 1);
  }
  return order;
}

}  // namespace sluice::schedule
