#include "engine/schedule/orders/pipeline_order.hpp"

#include <algorithm>
#include <array>

#include "base/error.hpp"

namespace sluice::schedule {
namespace {

constexpr std::array<std::string_view, kActionKindCount> kActionNames{
    "F",           "B",          "I",       "W",       "SEND_F",      "RECV_F",
    "SEND_B",      "RECV_B",     "UNSHARD", "RESHARD", "REDUCE_GRAD", "WAIT_REDUCE_GRAD",
    "WAIT_SEND_F", "WAIT_SEND_B"};
constexpr std::array<std::string_view, kOrderKindCount> kOrderNames{
    "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "vertical"};

}  // namespace

std::string describe(const StageAction& action) {
  std::string text = std::to_string(action.stage);
  text += kActionNames[static_cast<std::size_t>(action.kind)];
  if (action.microbatch >= 0) text += std::to_string(action.microbatch);
  return text;
}

std::string_view order_name(OrderKind kind) {
  return kOrderNames[static_cast<std::size_t>(kind)];
}

PipelineOrder make_order(OrderKind kind, std::int32_t ranks, std::int32_t stages_each,
                         std::int32_t microbatches) {
  switch (kind) {
    case OrderKind::kGPipe:
      return make_gpipe_order(ranks, microbatches);
    case OrderKind::k1F1B:
      return make_1f1b_order(ranks, microbatches);
    case OrderKind::kInterleaved:
      return make_interleaved_order(ranks, stages_each, microbatches);
    case OrderKind::kZbH1:
      return make_zb_h1_order(ranks, microbatches);
    case OrderKind::kZbH2:
      return make_zb_h2_order(ranks, microbatches);
    case OrderKind::kZbV:
      return make_zb_v_order(ranks, microbatches);
    case OrderKind::kVertical:
      return make_vertical_order(ranks, stages_each, microbatches);
  }
  throw InternalError("no such order");
}

std::vector<std::int32_t> most_in_flight(const PipelineOrder& order) {
  std::vector<std::int32_t> most;
  for (const std::vector<StageAction>& list : order.actions) {
    std::int32_t now = 0;
    std::int32_t peak = 0;
    for (const StageAction& action : list) {
      if (action.kind == ActionKind::kForward) peak = std::max(peak, ++now);
      if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight) --now;
    }
    most.push_back(peak);
  }
  return most;
}

}  // namespace sluice::schedule
