#include "engine/schedule/orders/pass_lists.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace sluice::schedule {

PipelineOrder begin_order(std::int32_t ranks, std::int32_t stages_each, std::int32_t microbatches) {
  SLUICE_CHECK(ranks > 0 && stages_each > 0 && microbatches > 0);
  PipelineOrder order;
  order.microbatches = microbatches;
  for (std::int32_t stage = 0; stage < ranks * stages_each; ++stage) {
    order.rank_of_stage.push_back(stage % ranks);
  }
  order.actions.resize(static_cast<std::size_t>(ranks));
  return order;
}

std::vector<StageAction> alternate(const std::vector<StageAction>& forward,
                                   const std::vector<StageAction>& backward, std::int32_t ahead) {
  const std::size_t first = std::min(static_cast<std::size_t>(ahead), forward.size());
  std::vector<StageAction> list(forward.begin(),
                                forward.begin() + static_cast<std::ptrdiff_t>(first));
  for (std::size_t k = 0; k < backward.size(); ++k) {
    if (first + k < forward.size()) list.push_back(forward[first + k]);
    list.push_back(backward[k]);
  }
  return list;
}

std::vector<StageAction> split_backward(std::int32_t stage, std::int32_t microbatches,
                                        std::int32_t ahead, std::int32_t lag) {
  std::vector<StageAction> list;
  const auto add = [&](ActionKind kind, std::int32_t microbatch) {
    if (microbatch >= 0 && microbatch < microbatches) list.push_back({kind, stage, microbatch});
  };
  for (std::int32_t k = 0; k < ahead; ++k) add(ActionKind::kForward, k);
  for (std::int32_t k = 0; k < microbatches; ++k) {
    add(ActionKind::kForward, ahead + k);
    add(ActionKind::kBackwardInput, k);
    add(ActionKind::kBackwardWeight, k - lag);
  }
  for (std::int32_t k = std::max(0, microbatches - lag); k < microbatches; ++k) {
    add(ActionKind::kBackwardWeight, k);
  }
  return list;
}

void leave_out_beyond(std::int32_t microbatches, std::vector<StageAction>& list) {
  std::erase_if(list, [&](const StageAction& action) { return action.microbatch >= microbatches; });
}

}  // namespace sluice::schedule
