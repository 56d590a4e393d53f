// Micro-batches go in groups of one for each rank. A group passes through a rank's stages one after
// another, so when its last member has left the rank, its first one has come around the ring to the
// next stage. Another number of micro-batches than whole groups is one without the last ones.
#include "engine/schedule/orders/pass_lists.hpp"

namespace sluice::schedule {

PipelineOrder make_interleaved_order(std::int32_t ranks, std::int32_t stages_each,
                                     std::int32_t microbatches) {
  PipelineOrder order = begin_order(ranks, stages_each, microbatches);
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    std::vector<StageAction> forward;
    std::vector<StageAction> backward;
    for (std::int32_t group = 0; group < microbatches; group += ranks) {
      for (std::int32_t turn = 0; turn < stages_each; ++turn) {
        const std::int32_t up = turn * ranks + rank;
        const std::int32_t down = (stages_each - turn - 1) * ranks + rank;
        for (std::int32_t k = group; k < group + ranks; ++k) {
          forward.push_back({ActionKind::kForward, up, k});
          backward.push_back({ActionKind::kBackward, down, k});
        }
      }
    }
    // The first group passes through all stages but the last one. The way from this rank to the
    // last and back takes two passes for each rank between, since forward and backward alternate.
    const std::int32_t ahead = (stages_each - 1) * ranks + 2 * (ranks - rank - 1);
    std::vector<StageAction>& list = order.actions[static_cast<std::size_t>(rank)];
    list = alternate(forward, backward, ahead);
    leave_out_beyond(microbatches, list);
  }
  return order;
}

}  // namespace sluice::schedule
