#include "engine/schedule/orders/pass_lists.hpp"

namespace sluice::schedule {

PipelineOrder make_vertical_order(std::int32_t ranks, std::int32_t stages_each,
                                  std::int32_t microbatches) {
  PipelineOrder order = begin_order(ranks, stages_each, microbatches);
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    std::vector<StageAction>& list = order.actions[static_cast<std::size_t>(rank)];
    const auto pass_all = [&](ActionKind kind, std::int32_t turn) {
      for (std::int32_t k = 0; k < microbatches; ++k)
        list.push_back({kind, turn * ranks + rank, k});
    };
    for (std::int32_t turn = 0; turn < stages_each; ++turn) pass_all(ActionKind::kForward, turn);
    for (std::int32_t turn = stages_each; turn-- > 0;) pass_all(ActionKind::kBackward, turn);
  }
  return order;
}

}  // namespace sluice::schedule
