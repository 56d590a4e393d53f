// The times of an order's passes alone, with or without messages: nothing else is in the way.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/schedule/orders/pipeline_order.hpp"

namespace sluice::schedule {

// The times of one stage and micro-batch, in any unit of time.
struct PassTimes {
  std::int64_t forward = 1;
  std::int64_t backward_input = 1;
  std::int64_t backward_weight = 1;
};

struct OrderTimes {
  struct Span {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  std::vector<std::vector<Span>> spans;  // by rank and action; other actions than passes are empty
  // By rank: the time from its first begin to its last end in which it runs no pass.
  std::vector<std::int64_t> bubbles;
  std::int64_t makespan = 0;
  std::int64_t bubble() const { return *std::max_element(bubbles.begin(), bubbles.end()); }
};

// Each pass begins as soon as its rank and the passes that it needs are done. Precondition:
// check_order finds nothing (InternalError if the passes wait in a circle).
OrderTimes time_order(const PipelineOrder& order, const PassTimes& times);

// The times of a stage that is not like the others, and of its messages.
struct StageTimes {
  PassTimes passes;
  // A whole backward pass has the gradient of the stage's input so long before its end.
  std::int64_t lead = 0;
  std::int64_t message = 0;  // from this stage to the next one, or back, if they have two ranks
};
// Times an order with times of each stage.
OrderTimes time_stages(const PipelineOrder& order, const std::vector<StageTimes>& stages);

}  // namespace sluice::schedule
