// The messages between stages, each with its place in the lists of both ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/schedule/orders/pipeline_order.hpp"

namespace sluice::schedule {

struct PlacedMessage {
  StageAction action;      // kSendForward to kReceiveBackward, of this rank's own stage
  std::int32_t peer = 0;   // the other rank of the order
  std::size_t before = 0;  // the pass that it stands in front of, by number in the rank's passes;
                           // their count: after all
};

// By rank, in list order. A send stands after the pass that makes its value, a receive in front of
// the one that needs it. All messages follow one order in the lists of all ranks, so the lists can
// run even if each rank did one thing at a time and sends blocked. Precondition: check_order finds
// nothing. Messages that the order lists itself are not looked at.
std::vector<std::vector<PlacedMessage>> place_messages(const PipelineOrder& order);

// The order with these messages among its passes, as torch lists them.
PipelineOrder list_messages(const PipelineOrder& order);

}  // namespace sluice::schedule
